-- Read the steps from KEYS and ARGV. A step is a table:
--
-- verb, follow   what to do, and what follows
-- activation, holder    the lease
-- box, name      its mailbox: key and name
-- run, message   'fence|message' of the command that runs, and its message id
-- ahead          the next command, if the worker has read it
-- grant          the message that limits let start
-- mark, value, ttl, waiting, inbox, reply, record, outcomes, outcome, unique, key, follow_ups, side, keeps,
-- caller, unused    what is left, if `leaves`
-- states, state  the hash, and what its entity has there
-- letter, raw    of b and p: a record and the raw envelope
-- delay, why, error    of w: ms, '1', '0' or 's', and how the attempt failed
-- counts         of g: '1' or '0'
-- last, count    of e
-- run_part, members    of a run: its part of the record, and steps of those that have ended before this one
-- suspended, ends, is_cancelled, wanted, command_id, awaited    of u
-- verdict, scopes    what limits say; added later

local before = byte(ARGV[4]) == BELOW_ZERO and 14 or 12  -- keys before those of the mailboxes
local key, arg = before + count, 6

-- Read what a step leaves, by its letters, and the arguments of its verb.
local function read_left(step, operation)
  step.leaves = true
  for at = 3, #operation do
    local what = sub(operation, at, at)
    local has_arguments = what == LEFT.UNUSED_TOKENS and 0 or 1
    key, arg = key + (what == LEFT.RUN and 0 or has_arguments), arg + has_arguments
    if what == LEFT.UNUSED_TOKENS then
      step.unused = true
    elseif what == LEFT.MARK then
      step.mark, step.ttl, step.value = KEYS[key], ARGV[arg], ARGV[arg + 1]
      arg = arg + 1
    elseif what == LEFT.WAITING_MARK then
      step.waiting, step.ttl = KEYS[key], ARGV[arg]
    elseif what == LEFT.REPLY then
      step.inbox, step.reply = KEYS[key], ARGV[arg]
    elseif what == LEFT.UNIQUE_KEY then
      step.unique, step.key = KEYS[key], ARGV[arg]
    elseif what == LEFT.FOLLOW_UPS then
      key = key + 1
      step.follow_ups = {}
      local delayed, later = KEYS[key - 1], KEYS[key]
      for i = 1, ARGV[arg] do
        key, arg = key + 2, arg + 4
        step.follow_ups[i] = {key = KEYS[key - 1], other = KEYS[key], text = ARGV[arg - 3],
          wait = tonumber(ARGV[arg - 2]), envelope = ARGV[arg - 1], extra = ARGV[arg], delayed = delayed,
          later = later}
      end
    elseif what == LEFT.STATE then
      step.states, step.state = KEYS[key], ARGV[arg]
    elseif what == LEFT.SIDE_RECORD then
      step.side, step.keeps = KEYS[key], ARGV[arg] == SIDE.KEPT
    elseif what == LEFT.CALLER then
      key, arg = key + 2, arg + 2
      step.caller = {KEYS[key - 2], KEYS[key - 1], KEYS[key], ARGV[arg - 2], ARGV[arg - 1], ARGV[arg]}
    elseif what == LEFT.RUN then
      step.run_part, step.message, step.members = ARGV[arg], ARGV[arg + 1], {}
      arg = arg + 2
      for i = 1, ARGV[arg] do
        local member = {
          verb = sub(ARGV[arg + 1], 1, 1), message = ARGV[arg + 2], box = step.box, name = step.name,
          holder = step.holder, run = step.run,
        }
        local ends = ARGV[arg + 1]
        arg = arg + 2
        read_left(member, ends)
        step.members[i] = member
      end
    else
      step.record, step.outcomes, step.outcome = KEYS[key], KEYS[key + 1], ARGV[arg]
      key = key + 1
    end
  end
  local verb = step.verb
  if verb == VERB.BURY or verb == VERB.PARK then
    step.letter, step.raw = ARGV[arg + 1], ARGV[arg + 2]
    arg = arg + 2
  elseif verb == VERB.WAIT then
    step.delay, step.why, step.error = ARGV[arg + 1], sub(ARGV[arg + 2], 1, 1), sub(ARGV[arg + 2], 2)
    arg = arg + 2
  elseif verb == VERB.GIVE_BACK then
    step.counts = ARGV[arg + 1]
    arg = arg + 1
  elseif verb == VERB.EXTEND then
    step.last, step.count = ARGV[arg + 1], ARGV[arg + 2]
    arg = arg + 2
  elseif verb == VERB.SUSPEND then
    key = key + 1
    step.suspended = KEYS[key]
    step.ends, step.is_cancelled, step.wanted = ARGV[arg + 1], ARGV[arg + 2] == '1', tonumber(ARGV[arg + 3])
    step.command_id, step.awaited = ARGV[arg + 5], {}
    for i = 1, ARGV[arg + 4] do step.awaited[i] = ARGV[arg + 5 + i] end
    arg = arg + 5 + #step.awaited
  end
end

local steps, names = {}, {}
for number = 1, count do
  local operation, running, box = ARGV[arg + 1], ARGV[arg + 4], KEYS[before + number]
  local verb, name = sub(operation, 1, 1), sub(box, prefix + 1)
  local step = {
    verb = verb, follow = sub(operation, 2, 2), activation = ARGV[arg + 2], holder = ARGV[arg + 3], box = box,
    name = name, run = running, message = nil,  -- a table of eight fields need not grow
  }
  arg = arg + 4
  if #operation > 2 or (verb ~= VERB.COMPLETE and verb ~= VERB.TAKE) then read_left(step, operation) end
  local bar = find(running, '|', 1, true)
  if bar == 2 and byte(running) == GRANTED then
    step.grant, step.run = sub(running, 3), ''
  elseif bar then
    local behind = find(running, '>', bar, true)
    if behind then
      step.ahead, running = sub(running, behind + 1), sub(running, 1, behind - 1)
      step.run = running
    end
    step.message = step.message or sub(running, bar + 1)
  end
  steps[number], names[number] = step, name
end
