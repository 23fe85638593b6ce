-- What visitors do, and the figures of a run as one line of JSON.
-- Shares are near to those of Apache Olio's own driver: home page, tag search, event details; now and then a comment.

local operations = {
   { 25, function() return "GET", "/" end },
   { 30, function() return "GET", "/tag/" .. math.random(0, 19) end },
   { 24, function() return "GET", "/event/" .. math.random(0, 199) end },
   { 12, function() return "GET", "/photo/" .. math.random(0, 39) end },
   { 7, function() return "GET", "/static/style.css" end },
   { 2, function() return "POST", "/comment/" .. math.random(0, 199), string.rep("I shall come. ", 20) end },
}

local total = 0
for _, operation in ipairs(operations) do
   total = total + operation[1]
end

function init(arguments)
   math.randomseed(tonumber(arguments[1]))
end

function request()
   local draw = math.random(total)
   for _, operation in ipairs(operations) do
      draw = draw - operation[1]
      if draw <= 0 then
         local method, path, body = operation[2]()
         return wrk.format(method, path, nil, body)
      end
   end
end

function done(summary, latency, requests)
   local errors = summary.errors
   local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
   io.write(string.format(
      '{"operations":%d,"duration_us":%d,"bytes":%d,"failed":%d,' ..
      '"mean_us":%.1f,"p50_us":%.1f,"p90_us":%.1f,"p99_us":%.1f}\n',
      summary.requests, summary.duration, summary.bytes, failed,
      latency.mean, latency:percentile(50), latency:percentile(90), latency:percentile(99)))
end
