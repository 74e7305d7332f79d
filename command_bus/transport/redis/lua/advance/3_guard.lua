-- What limits say before a command starts.

-- Return whether an entity's start is limited.
local function is_limited(name)
  if not limits then return false end
  local scopes, asks = limits.scopes_of(name)
  return #scopes > 0 or asks
end

-- Return nil if a command may start: then its tokens are deducted; 'ask' if its worker has to ask the first shard, and has not; else
-- the limit that refuses it, in whose queue its entity now stands.
local function guard(step, name, activation, message)
  if grants[step] == message then return nil end
  local scopes, asks = limits.scopes_of(name)
  if asks then return 'ask' end
  if #scopes == 0 then return nil end
  local refusing = limits.refusing(name, activation, message)
  if refusing then
    limits.wait(name, refusing, '', '', '0')
    return refusing
  end
  limits.start(name, activation, '', scopes, '0')
end

-- Return whether a lone command would be refused. It is not changed.
local function would_wait(step, name, activation)
  if grants[step] then return false end
  local _, asks = limits.scopes_of(name)
  return not asks and limits.refusing(name, activation, '') ~= nil
end

-- Return whether another entity waits for a place that this one has.
local function is_place_wanted(name)
  local pass = limits and is_home and limits.pass_of(name)
  for scope in pairs(pass and pass.scopes or {}) do
    if limits.is_queued(scope) then return true end
  end
  return false
end
