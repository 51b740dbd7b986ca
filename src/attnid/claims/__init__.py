"""The ledger: what the paper claims, how each claim is checked, and what came of it."""

from .ledger import LEDGER, STATUSES, Check, Claim, ClaimFails, check
