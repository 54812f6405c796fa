"""What the store does to token logs in one step each: Lua, run by the store itself."""

from typing import Final

# KEYS: log, route of each request. ARGV: live_s, ended_s, then entry id, frame, kind of each
# request (kind: "" in the middle, "s" the first frame, "e" the last, "b" both, "x" a mark).
# Returns {indices refused, indices that no web process heard}, counted from 1.
APPEND: Final = """
local refused, unheard, channels, members, parts = {}, {}, {}, {}, {}
for i = 1, #KEYS / 2 do
  local log, route, a = KEYS[2 * i - 1], KEYS[2 * i], 3 * i
  local channel = redis.call('GET', route)
  local entry = false
  local kind = ARGV[a + 2]
  local last = kind == 'e' or kind == 'b'
  local field = last and 'e' or kind == 'x' and 'x' or 'f'
  if channel then entry = redis.pcall('XADD', log, ARGV[a], field, ARGV[a + 1]) end
  if type(entry) ~= 'string' then
    refused[#refused + 1] = i
  else
    if last then
      redis.call('EXPIRE', log, ARGV[2])
      redis.call('EXPIRE', route, ARGV[2])
    elseif kind == 's' or kind == 'x' then
      redis.call('EXPIRE', log, ARGV[1])
    end
    if not parts[channel] then
      channels[#channels + 1] = channel
      parts[channel], members[channel] = {}, {}
    end
    local p = parts[channel]
    p[#p + 1] = ARGV[a + 1]
    local m = members[channel]
    m[#m + 1] = i
  end
end
for _, channel in ipairs(channels) do
  if redis.call('PUBLISH', channel, table.concat(parts[channel])) == 0 then
    for _, i in ipairs(members[channel]) do unheard[#unheard + 1] = i end
  end
end
return {refused, unheard}
"""

# KEYS: route. ARGV: channel of the new reader, the encoded Superseded. Returns the old channel, or
# nil.
ATTACH: Final = """
local old = redis.call('GET', KEYS[1])
if not old then return nil end
redis.call('SET', KEYS[1], ARGV[1], 'KEEPTTL')
if old ~= ARGV[1] then redis.call('PUBLISH', old, ARGV[2]) end
return old
"""

# KEYS: log. ARGV: live_s, FENCE_EPOCHS, id that the last entry must have ("": none, "*": any), what
# the fence says.
# Shuts out the present producer. Returns {0, epoch to go on with}, {1, 0} when the stream has
# ended, {2, 0} when the last entry is another.
FENCE: Final = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
-- An empty log has a producer too, whose epoch is 1: it may be about to append.
local epoch, id = 1, ''
if last[1] then
  if last[1][2][1] == 'e' then return {1, 0} end
  id = last[1][1]
  epoch = tonumber(string.match(id, '^(%d+)-'))
end
if ARGV[3] ~= '*' and ARGV[3] ~= id then return {2, 0} end
epoch = epoch + tonumber(ARGV[2])
redis.call('XADD', KEYS[1], string.format('%d-0', epoch), 'x', ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {0, epoch}
"""

# KEYS: log. ARGV: the caller's epoch, live_s. Returns the epoch in which the caller may go on, 0
# when somebody else has appended or fenced meanwhile. It jumps by two: the next one is the other
# side's, which may append later. An empty log is a queued request's. The mark `r` is for a second
# try after an answer that was lost.
RECLAIM: Final = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local mine = tonumber(ARGV[1])
if last[1] then
  if last[1][2][1] == 'e' then return 0 end
  local epoch = tonumber(string.match(last[1][1], '^(%d+)-'))
  if last[1][2][2] == 'r' and epoch == mine + 2 then return mine + 2 end
  if epoch > mine then return 0 end
end
redis.call('XADD', KEYS[1], string.format('%d-0', mine + 2), 'x', 'r')
redis.call('EXPIRE', KEYS[1], ARGV[2])
return mine + 2
"""
