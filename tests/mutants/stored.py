"""Deliberate bugs where stored values are read: one odd value stops others."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["STORED"]

_LUA = "transport/redis/lua"
_TEST = "tests/tables/test_stored_values.py::test_a_known_attack_harms_nobody"
_DUE = "transport/redis/maintenance/due_work.py"

STORED = (
    Mutant(
        "one odd member of `due` stops the others of its page",
        _DUE,
        "            if not is_of_a_value(error):\n",
        "            if error:\n",
        _TEST,
        more=((_DUE, "stored_ms(member.score)", "int(member.score)"),),
    ),
    Mutant(
        "members of `due` are taken for UTF-8",
        _DUE,
        "                except UnicodeDecodeError as error:\n",
        "                except KeyError as error:\n",
        _TEST,
    ),
    Mutant(
        "what was dealt with, and is still due, is dealt with all the time",
        _DUE,
        "        self._dealt.update(members)\n",
        "",
        _TEST,
        more=(("transport/redis/maintenance/due_work.py", "PAUSE_END), member.score)", "PAUSE_END), int(member.score))"),),
    ),
    Mutant(
        "a flow whose turn is beyond its class never has one",
        f"{_LUA}/shared/line_turns.lua",
        "at >= 0 and at < CLASS_SPAN and at or nil",
        "at or nil",
        _TEST,
    ),
    Mutant(
        "places with scores stay in the line",
        f"{_LUA}/fill_line.lua",
        "local odd = redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', '(0') + redis.call('ZREMRANGEBYSCORE', KEYS[5], '(0', '+inf')",
        "local odd = 0",
        _TEST,
    ),
    Mutant(
        "members of `places` with scores disorder the queues",
        "transport/redis/maintenance/waking.py",
        "        await self._remove_odd()\n        await self._revive()\n",
        "",
        _TEST,
    ),
    Mutant(
        "an odd schedule stops the others of its page",
        "scheduling/record.py",
        "        except Exception as error:  # noqa: BLE001 - any client may write there\n            pass_over(",
        "        except KeyError as error:\n            pass_over(",
        _TEST,
    ),
    Mutant(
        "an odd webhook ends the task that starts pumps",
        "webhooks/record.py",
        '        except (ValueError, TypeError, RecursionError) as error:\n            raise InvalidSettings(\n                "the record',
        '        except KeyError as error:\n            raise InvalidSettings(\n                "the record',
        _TEST,
    ),
    Mutant(
        "what cannot start keeps its grant",
        "worker/entity_run.py",
        "        self._stuck(lease)\n",
        "",
        f"{_TEST}[a mailbox that has a grant is no stream]",
    ),
    Mutant(
        "an incarnation that is no text is compared for ever",
        "transport/redis/incarnations.py",
        "elif not _WHOLE.fullmatch(found)",
        "elif False",
        f"{_TEST}[the incarnation is b'']",
    ),
    Mutant(
        "a rule is used whatever its figures are",
        f"{_LUA}/shared/limits.lua",
        "return number and number > 0 and number < 2 ^ 53 and number or nil",
        "return number",
        f"{_TEST}[rules has 'x|1|1|1|1|0']",
    ),
    Mutant(
        "half an activation is asked for",
        f"{_LUA}/shared/line.lua",
        "self.most = math.floor(count_in(values[10], 1, READY_MOST))",
        "self.most = count_in(values[10], 1, READY_MOST)",
        f"{_TEST}[flows has most '1.5']",
    ),
)
