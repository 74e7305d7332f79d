-- remove_worker: remove a worker that has stopped, unless it still holds something.
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   workers   hash: consumer name -> what the worker publishes of itself
-- ARGV[1]   group     of consumers
-- ARGV[2]   consumer
--
-- returns 1 if the consumer is gone, 0 if it has pending activations (deleting it would lose their entities)

local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if type(pending) == 'table' and not pending.err and #pending > 0 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[2])
redis.pcall('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
