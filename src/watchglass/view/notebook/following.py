"""The card of a run that updates itself while the run goes on."""

from __future__ import annotations

import threading
from html import escape

from watchglass.errors import InvalidValueError, WatchglassError, importing
from watchglass.run import Run, open_run

with importing("a card that updates itself needs anywidget", "notebook"):
    from anywidget import AnyWidget
    from traitlets import Unicode

#: Shows the card, which Python has escaped; what a reader has unfolded stays open.
_SHOW = """
function render({ model, el }) {
  const show = () => {
    const open = new Set([...el.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
    el.innerHTML = model.get("html");
    for (const each of el.querySelectorAll("details > summary")) each.parentElement.open ||= open.has(each.textContent);
  };
  model.on("change:html", show);
  show();
}
export default { render };
"""


#: What stands before the reason why the card is not up to date.
_AWAY = "<small>not up to date: "
#: Looks at a run that has ended, all without news, after which the card stays as it is.
_LOOKS_AFTER_END = 5
_SHORTEST_S = 0.5


class Card(AnyWidget):
    """A card that a thread keeps up to date until the run ends or the card is closed.

    Args:
        run: The run, from now on for the thread of the card.
        interval_s: Seconds between two looks.
    """

    _esm = _SHOW
    html = Unicode().tag(sync=True)

    def __init__(self, run: Run, interval_s: float) -> None:
        self._closed = threading.Event()
        self._run = run
        super().__init__(html=run._repr_html_())
        follower = threading.Thread(target=self._follow, args=(interval_s,), name="watchglass-card", daemon=True)
        follower.start()

    def close(self) -> None:
        """Stop, and remove the card."""
        self._closed.set()
        super().close()

    def _follow(self, interval_s: float) -> None:
        quiet = 0
        # The evaluator ends after the training.
        while quiet < _LOOKS_AFTER_END and not self._closed.wait(interval_s):
            over = bool(self._run.finished or self._run.lost)
            try:
                changed = bool(self._run.refresh())
                card = self._run._repr_html_()
            except (WatchglassError, OSError) as error:  # the store cannot be reached now: the card says so
                changed, card = False, f"{self.html.partition(_AWAY)[0]}{_AWAY}{escape(str(error))}</small>"
            quiet = quiet + 1 if over and not changed else 0
            if card != self.html and not self._closed.is_set():
                self.html = card


def live(run: Run, *, interval_s: float = 2.0) -> Card:
    """The card of a run, which updates itself while the run goes on, as the value of a notebook's cell.

    A thread reads the run until it has ended, or until ``close()`` of the card. Where notebooks cannot show widgets
    of Jupyter, the run itself shows its card once.

    Args:
        run: The run.
        interval_s: Seconds between two looks, at least 0.5.

    Raises:
        InvalidValueError: The interval is shorter, or what is given is no run.
        MissingExtraError: anywidget is not installed.
    """
    if not interval_s >= _SHORTEST_S:
        raise InvalidValueError(f"interval_s must be at least {_SHORTEST_S} s but got {interval_s!r}")
    if not isinstance(run, Run):
        raise InvalidValueError(f"live shows a run but got {run!r:.200}; open it with watchglass.open_run")
    return Card(open_run(run.location), interval_s)  # a run is for one thread
