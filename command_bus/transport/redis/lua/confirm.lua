-- confirm: write something that replicas can confirm, behind a script that may have written nothing.
--
-- KEYS[1]  stats  hash of counters
--
-- returns 1, or 0 if this shard has accepted nothing: its namespace may have been deleted, and this must not
-- bring a key of it back

if not redis.call('HGET', KEYS[1], 'depth') then return 0 end
redis.call('HINCRBY', KEYS[1], 'confirmations', 1)
return 1
