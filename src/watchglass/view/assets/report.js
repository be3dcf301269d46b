"use strict";
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = Array.from(document.querySelectorAll(".plot"));
  const config = { responsive: true, displaylogo: false, displayModeBar: false };

  function colours(night) {
    return { "font.color": night ? "#e6e9ec" : "#1c2024", "hoverlabel.bgcolor": night ? "#1d2125" : "#ffffff",
             "hoverlabel.font.color": night ? "#e6e9ec" : "#1c2024" };
  }
  function repaint(night) {
    plots.forEach(function (plot) { window.Plotly.relayout(plot, colours(night)); });
  }
  plots.forEach(function (plot) {
    const figure = JSON.parse(document.getElementById(plot.dataset.source).textContent);
    try {  // one that cannot be drawn hides no other
      window.Plotly.newPlot(plot, figure.data, figure.layout, config)
        .then(function () { return window.Plotly.relayout(plot, colours(dark.matches)); });
    } catch (error) {
      plot.textContent = "This figure cannot be drawn: " + error;
    }
  });
  dark.addEventListener("change", function () { repaint(dark.matches); });
  window.addEventListener("beforeprint", function () { repaint(false); });
  window.addEventListener("afterprint", function () { repaint(dark.matches); });
})();
