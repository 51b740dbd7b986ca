// Equations without a jump: the page appears when those near its top are set; the rest are set below, out of sight.
"use strict";

(() => {
  if (!window.MathJax) return;   // a page without equations
  const page = document.documentElement;
  const show = () => page.classList.remove("typesetting");
  page.classList.add("typesetting");
  window.addEventListener("load", () => { if (!MathJax.version) show(); });   // MathJax did not load

  const isNear = (element) => element.getBoundingClientRect().top < 2 * window.innerHeight;

  async function pageReady() {
    try {
      const near = [...document.querySelectorAll("article .math")].filter(isNear);
      if (!location.hash) await MathJax.typesetPromise(near).then(show);
      await MathJax.startup.defaultPageReady();
    } finally {
      show();
    }
    if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
  }

  MathJax.startup = {...MathJax.startup, pageReady};
})();
