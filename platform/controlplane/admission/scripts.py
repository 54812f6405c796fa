"""The store's side of admission: everything that must be exact over any number of web processes.

Keys, after `ferry:adm:`; <who> is t<tenant> or p<pool>:

| key | type | holds |
|---|---|---|
| <who>:req, <who>:tok | hash | a window: second -> amount; `n` their sum, `lo`, `hi` the ends |
| <who>:live | sorted set | leases under way, by the ms at which they expire |
| t<tenant>:spent:<year>-<month> | string | what a tenant has spent, in units of 1e-8 |
| lease:<request> | hash | what a request has been charged with |
| leases | sorted set | all leases that are not settled, by the ms at which they expire |

**Windows** are sliding: what came in a second counts until 60 s after the end of that second, so
never more than the limit comes in any 60 s, and room comes back within 60 to 61 s. An operation
costs the same however high a limit is.

**Leases.** A request is charged with what it reserves, later with what it has really used: each
charge is the difference to the one before, so that charging twice changes nothing. A lease whose
web process does not renew it stops counting as under way by itself; any web process then settles
it by the request's token log. Whoever resumes a request elsewhere takes its lease over (`own`), and
what the former owner says of it is ignored from then on.

Clocks: the store's alone. Keys are made up in the scripts, so a cluster's shards would not do.
"""

from typing import Final

PREFIX: Final = "ferry:adm:"
WINDOW_S: Final = 60
LEASE_KEPT_S: Final = 900
"""How long an ended request's charges are known: longer than its stream can be resumed."""
VOID_KEPT_S: Final = 60
"""How long a request that was given up is refused: its reserving may still be on its way."""
SPENT_KEPT_S: Final = 40 * 86_400
"""A month and some days; the database knows it for longer."""
BUSY_RETRY_MS: Final = 1000
"""When to ask again for one of the places that are all taken: nobody knows when one ends."""

_PRELUDE: Final = (
    """
local t = redis.call('TIME')
local now_s = tonumber(t[1])
local now_ms = now_s * 1000 + math.floor(tonumber(t[2]) / 1000)
"""
    f"local P, WINDOW = '{PREFIX}', {WINDOW_S}\n"
    f"local LEASE_KEPT, VOID_KEPT, BUSY_MS = {LEASE_KEPT_S}, {VOID_KEPT_S}, {BUSY_RETRY_MS}\n"
    """
-- Returns a window's sum, without the seconds that are over.
local function total(key)
  local head = redis.call('HMGET', key, 'n', 'lo')
  if not head[1] then return 0 end
  local n, lo, first = tonumber(head[1]), tonumber(head[2]), now_s - WINDOW
  if lo >= first then return n end
  -- The key goes by itself when nothing is added for a window's length.
  if first - lo > 2 * WINDOW then redis.call('DEL', key) return 0 end
  local names = {}
  for second = lo, first - 1 do names[#names + 1] = second end
  for _, amount in ipairs(redis.call('HMGET', key, unpack(names))) do
    if amount then n = n - tonumber(amount) end
  end
  redis.call('HDEL', key, unpack(names))
  redis.call('HSET', key, 'n', n, 'lo', first)
  return n
end

local function add(key, amount)
  if amount == 0 then return end
  total(key)
  redis.call('HINCRBY', key, now_s, amount)
  redis.call('HINCRBY', key, 'n', amount)
  redis.call('HSETNX', key, 'lo', now_s)
  redis.call('HSET', key, 'hi', now_s)
  redis.call('EXPIRE', key, WINDOW + 2)
end

-- Takes an amount out of a second again, if that second still counts.
local function take_back(key, second, amount)
  local there = tonumber(redis.call('HGET', key, second) or '0')
  if second < now_s - WINDOW or there <= 0 then return end
  if amount > there then amount = there end
  redis.call('HINCRBY', key, second, -amount)
  redis.call('HINCRBY', key, 'n', -amount)
end

-- Returns the ms until so much has left a window.
local function wait_ms(key, amount)
  local lo, hi = unpack(redis.call('HMGET', key, 'lo', 'hi'))
  if not lo then return 0 end
  local names, freed = {}, 0
  for second = tonumber(lo), tonumber(hi) do names[#names + 1] = second end
  for i, there in ipairs(redis.call('HMGET', key, unpack(names))) do
    freed = freed + tonumber(there or '0')
    if freed >= amount then return (names[i] + WINDOW + 1) * 1000 - now_ms end
  end
  return (WINDOW + 1) * 1000
end

-- Returns the ms until a window is empty.
local function reset_ms(key)
  local hi = redis.call('HGET', key, 'hi')
  if not hi then return 0 end
  return math.max(0, (tonumber(hi) + WINDOW + 1) * 1000 - now_ms)
end

-- Returns how many are under way.
local function live(key)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
  return redis.call('ZCARD', key)
end

-- Returns the month as 2026-07 (days since 0000-03-01 make leap years plain).
local function month()
  local z = math.floor(now_s / 86400) + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524)
    - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local m = mp < 10 and mp + 3 or mp - 9
  return string.format('%04d-%02d', yoe + era * 400 + (m <= 2 and 1 or 0), m)
end
"""
)

# ARGV: lease, owner, lease ms, tenant, pool, model, prompt tokens, tokens, cost, then the limits in
# the order of verdict.LimitName.
# Returns {0 or the number of what refuses, ms to wait, then the tenant's standing, month}.
RESERVE: Final = (
    _PRELUDE
    + """
local id, owner, tenant, pool = ARGV[1], ARGV[2], 't' .. ARGV[4], 'p' .. ARGV[5]
local tokens, cost = tonumber(ARGV[8]), tonumber(ARGV[9])
local key, this_month = P .. 'lease:' .. id, month()
if redis.call('EXISTS', key) == 1 then return {8, 0, 0, 0, 0, 0, 0, this_month} end
local spent_key = P .. tenant .. ':spent:' .. this_month
local budget, spent = tonumber(ARGV[13]), redis.call('GET', spent_key)
if budget >= 0 and not spent then return {9, 0, 0, 0, 0, 0, 0, this_month} end

local by, wait = 0, -1
local function refuse(number, ms) if ms > wait then by, wait = number, ms end end
local used, needs = {}, {1, tokens, 1}
for s, scope in ipairs({tenant, pool}) do
  for w, kind in ipairs({':req', ':tok'}) do
    local window, limit = P .. scope .. kind, tonumber(ARGV[s == 1 and 9 + w or 13 + w])
    local n = total(window)
    used[#used + 1] = n
    if limit >= 0 and n + needs[w] > limit then
      refuse(s == 1 and w or 4 + w, wait_ms(window, n + needs[w] - limit))
    end
  end
  local n, limit = live(P .. scope .. ':live'), tonumber(ARGV[s == 1 and 12 or 16])
  used[#used + 1] = n
  if limit >= 0 and n + 1 > limit then refuse(s == 1 and 3 or 7, BUSY_MS) end
end
if budget >= 0 and tonumber(spent) + cost > budget then refuse(4, 1e12) end

local requests, tokens_key = P .. tenant .. ':req', P .. tenant .. ':tok'
if by == 0 then
  for _, scope in ipairs({tenant, pool}) do
    add(P .. scope .. ':req', 1)
    add(P .. scope .. ':tok', tokens)
    redis.call('ZADD', P .. scope .. ':live', now_ms + tonumber(ARGV[3]), id)
  end
  if spent then redis.call('INCRBY', spent_key, ARGV[9]) end
  redis.call('HSET', key, 'st', 'live', 'own', owner, 't', ARGV[4], 'p', ARGV[5], 'b', now_s,
    'tok', ARGV[8], 'cost', ARGV[9], 'm', this_month, 'paid', spent and 1 or 0,
    'act', 0, 'acost', 0, 'pt', ARGV[7], 'ch', 0, 'model', ARGV[6])
  redis.call('ZADD', P .. 'leases', now_ms + tonumber(ARGV[3]), id)
  used[1], used[2], used[3] = used[1] + 1, used[2] + tokens, used[3] + 1
end
return {by, math.max(0, wait), used[1], used[2], used[3], reset_ms(requests), reset_ms(tokens_key),
  this_month}
"""
)

# ARGV, for each change: what, lease, owner, ms, prompt tokens, cached tokens, all tokens, cost.
# What: r renew for ms; s settle; v give up; d let go for ms; a take over for ms; x settle one that
# has expired; y give up one that has expired. Returns the leases that are not the owner's (any
# more), and among them those that were settled as expired while their owner still renews them.
CHANGE: Final = (
    _PRELUDE
    + """
local others, settled = {}, {}

local function charge(lease, tokens, cost)
  local more = tokens - lease.tok
  for _, scope in ipairs({lease.tenant, lease.pool}) do
    if more > 0 then add(P .. scope .. ':tok', more)
    elseif more < 0 then take_back(P .. scope .. ':tok', lease.b, -more) end
  end
  local spent_key = P .. lease.tenant .. ':spent:' .. lease.month
  if redis.call('EXISTS', spent_key) == 1 then
    redis.call('INCRBY', spent_key, string.format('%.0f', cost - (lease.paid and lease.cost or 0)))
    lease.paid = true
  end
  lease.tok, lease.cost = tokens, cost
end

local function set_expiry(lease, id, ms)
  redis.call('ZADD', P .. lease.tenant .. ':live', now_ms + ms, id)
  redis.call('ZADD', P .. lease.pool .. ':live', now_ms + ms, id)
  redis.call('ZADD', P .. 'leases', now_ms + ms, id)
end

local function close(lease, id)
  redis.call('ZREM', P .. lease.tenant .. ':live', id)
  redis.call('ZREM', P .. lease.pool .. ':live', id)
  redis.call('ZREM', P .. 'leases', id)
end

local function change(what, id, owner, ms, prompt, cached, tokens, cost)
  local key = P .. 'lease:' .. id
  local f = redis.call('HMGET', key, 'st', 'own', 't', 'p', 'b', 'tok', 'cost', 'm', 'paid', 'act',
    'acost')
  if not f[1] then
    if what == 'v' then
      redis.call('HSET', key, 'st', 'void')
      redis.call('EXPIRE', key, VOID_KEPT)
    end
    if what == 'x' or what == 'y' then redis.call('ZREM', P .. 'leases', id) end
    return what == 'v'
  end
  if f[1] == 'void' or (f[1] == 'done' and what ~= 'a') then
    if what == 'x' or what == 'y' then redis.call('ZREM', P .. 'leases', id) end
    if what == 'r' and f[1] == 'done' and f[2] == owner then settled[#settled + 1] = id end
    return what == 'v'
  end
  local lease = {tenant = 't' .. f[3], pool = 'p' .. f[4], b = tonumber(f[5]), tok = tonumber(f[6]),
    cost = tonumber(f[7]), month = f[8], paid = f[9] == '1'}
  if what == 'a' then
    set_expiry(lease, id, ms)
    redis.call('HSET', key, 'own', owner, 'st', 'live')
    redis.call('PERSIST', key)
    return true
  end
  if what == 'x' or what == 'y' then
    if tonumber(redis.call('ZSCORE', P .. 'leases', id) or '0') > now_ms then return false end
  elseif f[2] ~= owner then
    return false
  end
  -- What was known to be used once is never given back.
  tokens, cost = math.max(tokens, tonumber(f[10])), math.max(cost, tonumber(f[11]))
  local is_end = what == 's' or what == 'x'
  if what == 'v' or what == 'y' then
    charge(lease, 0, 0)
    take_back(P .. lease.tenant .. ':req', lease.b, 1)
    take_back(P .. lease.pool .. ':req', lease.b, 1)
    close(lease, id)
    redis.call('HSET', key, 'st', 'void')
    redis.call('EXPIRE', key, VOID_KEPT)
    return true
  end
  charge(lease, is_end and tokens or math.max(tokens, lease.tok),
    is_end and cost or math.max(cost, lease.cost))
  redis.call('HSET', key, 'tok', lease.tok, 'cost', string.format('%.0f', lease.cost),
    'paid', lease.paid and 1 or 0, 'act', tokens, 'acost', string.format('%.0f', cost))
  if prompt > 0 then redis.call('HSET', key, 'pt', prompt, 'ch', cached) end
  if is_end then
    close(lease, id)
    redis.call('HSET', key, 'st', 'done')
    redis.call('EXPIRE', key, LEASE_KEPT)
  else
    set_expiry(lease, id, ms)
  end
  return true
end

for i = 1, #ARGV, 8 do
  local ok = change(ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]),
    tonumber(ARGV[i + 5]), tonumber(ARGV[i + 6]), tonumber(ARGV[i + 7]))
  if not ok then others[#others + 1] = ARGV[i + 1] end
end
return {others, settled}
"""
)

# ARGV: tenant, 1 to sum up what its leases reserve. Returns {its standing, month, spent or -1,
# tokens and cost that are reserved and not used}.
LOOK: Final = (
    _PRELUDE
    + """
local tenant = P .. 't' .. ARGV[1]
local requests, tokens = total(tenant .. ':req'), total(tenant .. ':tok')
local n, this_month = live(tenant .. ':live'), month()
local spent = redis.call('GET', tenant .. ':spent:' .. this_month)
local held, held_cost = 0, 0
if ARGV[2] == '1' then
  for _, id in ipairs(redis.call('ZRANGE', tenant .. ':live', 0, -1)) do
    local f = redis.call('HMGET', P .. 'lease:' .. id, 'tok', 'act', 'cost', 'acost', 'b')
    if f[1] then
      -- What was reserved earlier is in no window any more.
      if tonumber(f[5]) >= now_s - WINDOW then
        held = held + math.max(0, tonumber(f[1]) - tonumber(f[2]))
      end
      held_cost = held_cost + math.max(0, tonumber(f[3]) - tonumber(f[4]))
    end
  end
end
return {requests, tokens, n, reset_ms(tenant .. ':req'), reset_ms(tenant .. ':tok'), this_month,
  spent or '-1', held, string.format('%.0f', held_cost)}
"""
)

# ARGV: how many at most. Returns leases that have expired: {id, model, prompt tokens, cached
# tokens, ...}.
EXPIRED: Final = (
    _PRELUDE
    + """
local found = {}
local ids = redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', now_ms, 'LIMIT', 0, ARGV[1])
for _, id in ipairs(ids) do
  local f = redis.call('HMGET', P .. 'lease:' .. id, 'model', 'pt', 'ch')
  if f[1] then
    for _, value in ipairs({id, f[1], f[2], f[3]}) do found[#found + 1] = value end
  else
    redis.call('ZREM', P .. 'leases', id)
  end
end
return found
"""
)


def spent_key(tenant_id: int, month: str) -> str:
    """Returns the key of what a tenant has spent in a month (2026-07)."""
    return f"{PREFIX}t{tenant_id}:spent:{month}"
