"""The fidelity record as a page: tables of what was measured, then what is known to differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Record = dict[str, Any]


def markdown(summary: Record) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    parts = [
        "# How close are the tasks to D4RL's?",
        "Every number in the tables was measured by this command, unless its column says *published* or *reference*:",
        f"```sh\n{summary['command']}\n```",
        f"Versions: {versions}. Seed {summary['seed']}. `±` is one standard error of the mean over episodes (times "
        "1.96: a 95 % interval), σ the standard deviation. The same numbers for machines lie beside this page as "
        "`.json`.",
        *_replay(summary),
        *_returns(summary["returns"]),
        *_maze2d(summary),
        *_antmaze(summary["antmaze"]),
        "## What is known to differ",
        *_differences(summary),
    ]
    return "\n\n".join(parts) + "\n"


def _replay(summary: Record) -> list[str]:
    real, regenerated = summary["replay_real"], summary["replay_regenerated"]
    flagged = any(record["file"].endswith("-v0.hdf5") for record in real)
    parts = [
        "## One step from recorded states",
        "The simulator is set to a recorded state, takes the recorded action, and is compared with the state that was "
        "recorded next. An error is that of the largest component of the observation (float32 in the files). *Legacy* "
        "undoes two changes in MuJoCo since D4RL's 2.0: the inertia of capsules (2.1.2) and summed contact margins "
        "(3.5). It is what `sageplan.tasks.make` does; `legacy=False` does not.",
        "**Rows of official D4RL files**, each file's first episodes, which the TensorFlow Datasets repository keeps "
        "as "
        "test fixtures. There is none of Walker2d, Maze2D or Kitchen.",
        _replay_table(real),
        "Left out are rows whose recorded velocity is clipped at ±10, which hides the true state (Hopper, Walker2d), "
        "and "
        "where an episode ends and the next state is not recorded (AntMaze)."
        + (" AntMaze's version 0 flags its ends two rows early; here they are every 1,001 rows." if flagged else ""),
    ]
    if regenerated:
        parts += [
            "**Regenerated files.** They say less: physics corrected in the same two ways made them, so they test that "
            "this package agrees with another implementation of the same idea, and they are at hand for the worlds "
            "that have no real rows. At most 20,000 rows of each, evenly spread.",
            _replay_table(regenerated),
        ]
    return parts


def _replay_table(records: Sequence[Record]) -> str:
    def rewards(record: Record) -> str:
        legacy = record["legacy"]
        if legacy["reward_median"] is None:
            return "goal not recorded"
        if legacy["reward_max"] == 0:
            return "0 in every row"
        return f"{legacy['reward_median']:.0e}, at most {legacy['reward_max']:.0e}"

    return _table(
        records,
        {
            "file": lambda r: r["file"].removesuffix(".hdf5"),
            "rows used": lambda r: f"{r['rows']:,} of {r['rows_in_file']:,}",
            "legacy: median": lambda r: f"**{r['legacy']['median']:.1e}**",
            "95 %": lambda r: f"{r['legacy']['p95']:.1e}",
            "max": lambda r: f"{r['legacy']['max']:.1e}",
            "reward, median": rewards,
            "not legacy: median": lambda r: f"{r['modern']['median']:.1e}" if "modern" in r else "the same",
        },
    )


def _returns(records: Sequence[Record]) -> list[str]:
    return [
        "## Returns of D4RL's own policies",
        "D4RL's `medium` files hold the policy that collected them. Here it acts in our tasks, its actions drawn as "
        "they "
        "were then. It earns what it did for D4RL if the last column is small: the difference, in standard errors of "
        "both sides.",
        _table(
            records,
            {
                "task": lambda r: r["task"],
                "episodes": lambda r: f"{r['return']['episodes']:,}",
                "return": lambda r: f"**{_mean(r['return'], 0)}**, σ {r['return']['std']:.0f}",
                "published return": lambda r: (
                    f"{r['published']['return']['mean']:.0f}, σ {r['published']['return']['std']:.0f}"
                ),
                "steps": lambda r: _mean(r["length"], 1),
                "published steps": lambda r: f"{r['published']['length']['mean']:.1f}",
                "fell": lambda r: f"{100 * r['fell']:.1f} %",
                "standard errors apart": lambda r: f"{r['standard_errors_apart']:+.1f}",
            },
        ),
        "Published returns: mean and σ over the episodes of the official file, as the loader of Decision Transformer "
        "prints them (recorded in public copies of its code). Published steps: rows through episodes of the TensorFlow "
        "Datasets catalogue, which counts the last, unfinished episode."
        + "".join(_apart(record) for record in records),
    ]


def _apart(record: Record) -> str:
    """On a difference that chance makes only once in twenty."""
    if abs(record["standard_errors_apart"]) < 2:
        return ""
    there = record["published"]["return"]
    percent = 100 * (record["return"]["mean"] / there["mean"] - 1)
    return (
        f" {record['task']} is {percent:+.1f} % off, which chance does once in twenty or less. Our episodes have a "
        "longer "
        f"tail, if σ says it: {100 * record['below_half_of_median']:.1f} % of them earn less than half of the median "
        f"({record['median_return']:,.0f})."
        if record["return"]["std"] > there["std"]
        else f" {record['task']} is {percent:+.1f} % off, which chance does once in twenty or less."
    )


def _maze2d(summary: Record) -> list[str]:
    speed = summary["top_speed"]
    exact = (
        "the same to the last digit" if f"{speed['simulated']:.7f}" == f"{speed['published']:.7f}" else "not the same"
    )
    return [
        "## Maze2D: the waypoint controller and the reference scores",
        "D4RL's reference maxima are returns of its waypoint controller. That plans only when the goal changes, which "
        "in "
        "evaluation it never does, and the same controller went on from episode to episode: from the second on it "
        "heads "
        "straight for the goal, walls or not (D4RL issues 159 and 215). Both are here: with a path planned in each "
        "episode, and with what is left of the one before.",
        _table(
            summary["maze2d"],
            {
                "task": lambda r: r["task"],
                "episodes": lambda r: f"{r['path_per_episode']['episodes']:,}",
                "steps": lambda r: str(r["steps"]),
                "path kept": lambda r: f"**{_mean(r['path_kept'], 1)}**",
                "reference maximum": lambda r: f"{r['reference']['max']:.2f}",
                "path per episode": lambda r: _mean(r["path_per_episode"], 1),
            },
        ),
        "So a score of 100 is no ceiling: a controller that plans every time scores "
        + ", ".join(_score(r) for r in summary["maze2d"])
        + ". We keep D4RL's reference values, as everybody's scores are made with them.",
        "No row of an official Maze2D file was at hand. Of what is published about them, the top speed can be "
        "compared: "
        f"{speed['published']:.7f} in maze2d-large, {speed['simulated']:.7f} in our simulation, {exact}.",
    ]


def _score(record: Record) -> str:
    low, high = record["reference"]["min"], record["reference"]["max"]
    return f"{100 * (record['path_per_episode']['mean'] - low) / (high - low):.0f} ({record['task']})"


def _antmaze(records: Sequence[Record]) -> list[str]:
    return [
        "## AntMaze: the goal-reaching policy",
        "The low-level policy that D4RL published for AntMaze, sent along a shortest path of cells to the task's goal, "
        "without the noise that D4RL put on waypoints and actions while recording. No published number belongs to "
        "this; "
        "it shows that an ant of D4RL's walks, turns and arrives in ours.",
        _table(
            records,
            {
                "task": lambda r: r["task"],
                "episodes": lambda r: f"{r['success']['episodes']:,}",
                "success": lambda r: f"**{_mean(r['success'], 3)}**",
                "steps when it succeeds": lambda r: (
                    _mean(r["steps_of_successes"], 0) if r["steps_of_successes"] else "–"
                ),
            },
        ),
    ]


def _differences(summary: Record) -> list[str]:
    kitchen = summary["kitchen"]
    heights = kitchen["kettle_height"]
    everything = summary["replay_real"] + summary["replay_regenerated"]
    points = [
        *(_wall_point(record) for record in summary["replay_real"] if "walls" in record),
        "**Warm start.** MuJoCo's solver begins with the contact forces of the step before. Here every environment "
        "step "
        "begins without, so that a step depends on state and action alone; Kitchen is the exception. It hardly "
        "matters: "
        "one step with and without differs by at most "
        + ", ".join(f"{r['max']:.0e} ({r['world']})" for r in summary["warm_start"])
        + f" in {summary['warm_start'][0]['steps']:,} steps of each medium policy.",
        "**Whole episodes** are not D4RL's step by step: contact makes any difference grow, that of float32 too. What "
        "can be compared is their distribution, as above.",
        *(_terminal_point(record) for record in summary["replay_real"] if "terminal" in record),
        "**Simulations that break down.** Where MuJoCo gave up on a state, D4RL raised an exception; here that episode "
        "terminates with reward 0 for the step and the others in the batch go on. "
        f"In the replays above it happened in {sum(r['legacy']['broken_down'] for r in everything)} of "
        f"{sum(r['rows'] for r in everything):,} rows.",
        "**AntMaze goals.** D4RL drew them from NumPy's global generator, so that forked workers could share them. "
        "Here "
        "each environment draws from its own seed: the same distribution, other numbers. The same holds for every "
        "start.",
        "**Maze2D reference maxima** are below what a sensible controller earns; see above.",
        "**Maze2D data built here** (`sageplan data build`) differ from D4RL's in three ways: several runs laid end to "
        "end in place of one (`--runs 1` for one), no repeated observation after a change of goal (`--stale-rows` for "
        "it), and a path starts at the cell that the ball is in, where D4RL's rounding can take a ball near a wall for "
        "one inside it. The noise on actions, σ 0.5, is inferred from the published range of positions.",
        "**Kitchen has not been compared with recorded physics**: no row of its files was at hand, and its "
        "observations "
        "are noisy and without velocities, so that one cannot be replayed anyway. What follows is from D4RL's code.",
        "**Kitchen's rewards.** The environment pays 1 once for each element when it is completed, and at most 4; its "
        "recorded data hold in *every row* the number of elements that are then done. A return from the environment "
        "and "
        "a sum over a recorded episode are different quantities; `sageplan data check` counts the most that were done "
        "at once.",
        "**Kitchen and gymnasium-robotics.** We use its model, but D4RL's rules: noise of a tenth of the amplitudes "
        "that "
        "D4RL states, whose list was made for other objects and stands shifted against these coordinates; completion "
        "judged by the noisy readings, so that noise can complete an element a little early; speeds added to the last "
        "noisy reading; 280 steps. FrankaKitchen-v1 has noise ratios of 0.01 and 0.0005, and judges without noise.",
        f"**Kitchen's contacts.** {kitchen['steps']} smooth random actions, always the same, move an object by more "
        "than 1 "
        f"cm (or 0.01 rad) in {_percent(kitchen['moved_something'])} of {kitchen['kitchens']} kitchens. An object ends "
        f"elsewhere by as much in {_percent(kitchen['margins'])} if contact margins are added as in MuJoCo 3.5 and "
        "later, not compared as before"
        + (
            ""
            if kitchen["collision_detection"] is None
            else f", in {_percent(kitchen['collision_detection'])} with libccd, which D4RL used, in place of MuJoCo's "
            "native collision detection, which is what we use"
        )
        + f", and in {_percent(kitchen['nudged'])} if nothing is changed but the start, by {kitchen['nudge']:.0e}. "
        f"Margins are D4RL's here; they show at rest, too: the kettle stands at a height of {heights['legacy']:.4f} m, "
        f"with added margins at {heights['modern']:.4f} m.",
    ]
    return ["\n".join(f"- {point}" for point in points)]


def _wall_point(record: Record) -> str:
    walls, legacy = record["walls"], record["legacy"]
    text = (
        f"**AntMaze's contacts.** {walls['large']} of {record['rows']:,} real rows have errors above 1e-4, the largest "
        f"{legacy['max']:.1e}. In {walls['large_touching']} of them the ant touches a wall. It does so in "
        f"{walls['touching']} rows"
    )
    text += f", whose median is {walls['median_touching']:.1e} all the same." if walls["median_touching"] else "."
    for row in walls["large_elsewhere"]:
        text += (
            f" One is away from walls ({row['error']:.1e}), with the torso's centre {row['height']:.2f} m above the "
            "floor; "
            "its radius is 0.25 m."
        )
    return f"{text} Why these few contacts come out otherwise in later versions of MuJoCo, we do not know."


def _terminal_point(record: Record) -> str:
    terminal = record["terminal"]
    return (
        "**Terminal steps** are no difference: as in Gym's v2, the reward for being alive is paid on the step that "
        "ends "
        f"an episode, too, where Gymnasium's v5 leaves it out. On the {terminal['rows']} terminal rows of "
        f"{record['file'].removesuffix('.hdf5')} rewards agree to {terminal['reward_max']:.0e}. Data sets store no "
        "bonus "
        "or penalty beyond it."
    )


def _table(records: Sequence[Record], columns: dict[str, Callable[[Record], str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(cell(record) for cell in columns.values()) + " |" for record in records]
    return "\n".join(lines)


def _mean(entry: dict[str, float], digits: int) -> str:
    return f"{entry['mean']:,.{digits}f} ± {entry['standard_error']:,.{digits}f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
