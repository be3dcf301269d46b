"""The kinds of facts: each is declared once, for those who record it, rules, documentation and users.

docs/facts.md says what each kind and each field means, and the units. Optional fields are None where nothing is known.
"""

from watchglass.records.facts.batches import *
from watchglass.records.facts.calls import *
from watchglass.records.facts.first_bad import *
from watchglass.records.facts.gradients import *
from watchglass.records.facts.losses import *
from watchglass.records.facts.modules import *
from watchglass.records.facts.process import *
from watchglass.records.facts.run import *
