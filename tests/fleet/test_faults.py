"""Histories of faults, drawn at random: the budget holds, and in the end everybody is served.

A history that fails is run again with its seed: `play(seed)`.
"""

import random

import pytest

from tests.support.fleet_simulation import SimulatedProcess, Simulation

pytestmark = [pytest.mark.once, pytest.mark.coreless]

TTL = 10.0
BEAT = TTL / 5


class History:
    """One history: what happens, and what the design allows to go wrong because of it."""

    def __init__(self, seed, *, exact):
        """`exact`: nothing happens of which the design says that it may cost exactness."""
        random.seed(seed)  # of what jitters
        self.random = random.Random(seed)
        self.exact = exact
        self.budget = self.random.choice([1, 3, 8, 20, 40])
        self.simulation = Simulation(seed, self.budget, ttl=TTL)
        self.story = []
        self.changed_at = self.simulation.now  # when somebody came
        self.learns_until = 0.0  # until then the ledger does not know who has how much

    def tell(self, what):
        self.story.append(f"{self.simulation.now:.2f} {what}")

    @property
    def living(self):
        return [
            each
            for each in self.simulation.processes.values()
            if not each.is_dead and not each.pool.closed and each.load >= 0
        ]

    def begin(self, number):
        for _ in range(number):
            self.join()
        self.simulation.run(self.random.uniform(0, 8))

    def join(self):
        draw = self.random
        most = draw.choice([1, 2, 5, 10, 20])
        process = SimulatedProcess(
            self.simulation,
            min_size=min(most, self.budget, draw.choice([0, 0, 1, 2])),
            max_size=most,
            rate=draw.uniform(0.996, 1.004),
            slow=draw.choice([0.0, 0.01, 0.1]),
        )
        process.work(draw.choice([0, 1, 2, 8, 30]), draw.choice([0.1, 0.5, 2.0]))
        line_is_bad = self.simulation.loss or self.simulation.delay[1] > BEAT / 4
        if line_is_bad or self.simulation.now < self.learns_until:
            # It may be given its floor before the others have said what they have, or get no answer
            # for so long that it takes what one alone may have.
            self.simulation.allowance += min(most, self.budget)
            self.tell("which may begin with too much")
        self.changed_at = self.simulation.now
        self.tell(f"{process.host} joins with {most}, {process.load} tasks")

    # -- what can happen ---------------------------------------------------------------------------

    def load(self):
        for process in self.living:
            if self.random.random() < 0.5:
                process.work(self.random.choice([0, 1, 3, 10, 30]), self.random.choice([0.1, 0.4]))
        self.tell(f"loads are {[each.load for each in self.living]}")

    def deploy(self):
        old = self.living
        self.tell("a deploy begins")
        for _ in old:
            self.join()
        self.simulation.run(self.random.uniform(0, 3))
        for process in old:
            process.end()
        self.tell("the old ones close")

    def close_one(self):
        if self.living:
            process = self.random.choice(self.living)
            process.end()
            self.tell(f"{process.host} closes")

    def kill_one(self):
        if self.living:
            process = self.random.choice(self.living)
            process.kill()
            self.tell(f"{process.host} is killed")

    def pause_one(self):
        if self.living:
            process = self.random.choice(self.living)
            longest = 0.9 * TTL if self.exact else 3 * TTL
            seconds = self.random.uniform(0, longest)
            if seconds > 0.95 * TTL:
                self.simulation.allowance += process.pool.max_size + process.pool.occupied
            process.pause(seconds)
            self.tell(f"{process.host} is paused for {seconds:.1f} s")

    def cut_one_off(self):
        if self.living:
            process = self.random.choice(self.living)
            longest = 0.7 * TTL if self.exact else 4 * TTL
            seconds = self.random.uniform(0, longest)
            if not self.exact:
                pool = process.pool
                self.simulation.allowance += max(pool.max_size, pool.occupied, process.part)
                self.simulation.debts = True
            process.away = True
            self.simulation.after(seconds, lambda: setattr(process, "away", False))
            self.tell(f"{process.host} is cut off for {seconds:.1f} s")

    def lose_ledger(self):
        """Nobody reaches it; it comes back with its data."""
        if self.simulation.now - self.changed_at < 2 * BEAT:
            return  # else some do not know yet how many there are
        seconds = self.random.uniform(0, 4 * TTL)
        self.simulation.debts = self.simulation.debts or seconds > 0.7 * TTL
        self.simulation.away = True
        self.tell(f"the ledger is away for {seconds:.1f} s")
        self.simulation.run(seconds)
        self.simulation.away = False
        self.learns_until = self.simulation.now + 4 * BEAT

    def forget(self):
        """It comes back without them: newcomers may get their floor."""
        self.simulation.debts = True
        self.simulation.forget()
        self.simulation.allowance += 2 * len(self.living)
        self.tell("the ledger has lost everything")

    def worsen_line(self):
        draw, simulation = self.random, self.simulation
        simulation.delay = draw.choice([(0.001, 0.002), (0.001, 0.2), (0.01, 3.0), (0.5, 1.5)])
        simulation.loss = draw.choice([0.0, 0.0, 0.05, 0.3])
        if self.exact and simulation.delay[1] > BEAT / 4:
            simulation.loss = 0.0  # with both it is as if there were no line at all
        simulation.repetition = draw.choice([0.0, 0.1, 0.5])
        self.tell(f"the line: {simulation.delay}, loses {simulation.loss}")

    def improve_line(self):
        self.simulation.delay = 0.001, 0.01
        self.simulation.loss = self.simulation.repetition = 0.0
        self.tell("the line is good")

    def go_on(self, events):
        every = [
            self.load, self.load, self.join, self.deploy, self.close_one, self.kill_one,
            self.pause_one, self.worsen_line, self.improve_line, self.cut_one_off,
        ]  # fmt: skip
        every += [self.lose_ledger] if self.exact else [self.forget]
        for _ in range(events):
            self.random.choice(every)()
            self.simulation.run(self.random.choice([0.0, 0.1, 1.0, 5.0, 15.0]))

    # -- the end -----------------------------------------------------------------------------------

    def heal(self):
        """Everything works again: after a while there is no overshoot, and nobody starves."""
        simulation = self.simulation
        self.tell("everything is healed")
        self.improve_line()
        for process in self.living:
            process.away = False
            process.go_on()
        simulation.run(4 * TTL + 10)
        simulation.allowance, simulation.debts = 0, False
        if not self.living:
            self.join()
        for process in self.living:
            process.work(3, 0.2)
            process.served = 0
        simulation.run(20 + 5.0 * len(self.living))
        starved = [each.host for each in self.living if not each.served]
        assert not starved, f"{starved} of {len(self.living)} got nothing"
        assert not simulation.errors, simulation.errors
        for process in self.living:
            process.end()
        simulation.run(5)
        assert not simulation.there
        rows = simulation.reference.rows
        living = [row for row in rows.values() if row.ends > simulation.now + TTL]
        assert not living


def play(seed, *, exact):
    history = History(seed, exact=exact)
    try:
        history.begin(history.random.randint(1, 8))
        history.go_on(history.random.randint(3, 15))
        history.heal()
    except AssertionError as error:
        error.add_note(f"seed {seed}, budget {history.budget}:\n" + "\n".join(history.story))
        raise
    finally:
        history.simulation.close()


@pytest.mark.parametrize("seed", range(12))
def test_the_budget_holds_whatever_fails(seed):
    play(seed, exact=True)


@pytest.mark.parametrize("seed", range(12))
def test_overshoot_stays_within_what_the_design_allows(seed):
    play(seed, exact=False)


@pytest.mark.exhibit
@pytest.mark.parametrize("block", range(100))
def test_ten_thousand_histories_of_faults(block):
    for seed in range(1000 + 100 * block, 1000 + 100 * (block + 1)):
        play(seed, exact=seed % 2 == 0)
