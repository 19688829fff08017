# The application of `.ci/workers`. WORK is the number of steps of a request. It is a number of steps and not a time, so
# that a request takes longer if it shares a CPU. calibrate.rb finds the number for a time. PAUSE is the number of seconds
# that a request waits.
WORK = Integer(ENV.fetch("WORK", "1000000"))
PAUSE = Float(ENV.fetch("PAUSE", "0.036"))
LOCK = Mutex.new

def work(steps)
  x = 1
  i = 0
  while i < steps
    x = (x * 1103515245 + 12345) & 0x7fffffff
    i += 1
  end
  x
end

def wait
  sleep PAUSE
end

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

ANSWER = "ok\n".freeze

run lambda { |env|
  case env["PATH_INFO"]
  when "/ready" then nil
  when "/work" then work(WORK)
  when "/sleep" then wait
  when "/mixed" # half of each
    sleep PAUSE / 2
    work(WORK / 2)
  when "/lock" # ten turns with a lock of the process, like ten time slices of the interpreter's lock, but without CPU time
    left = PAUSE
    while left > 0.0002
      LOCK.synchronize do
        began = now
        sleep [left, PAUSE / 10].min
        left -= now - began # sleep takes slightly longer
      end
      Thread.pass # the next waiting thread gets the lock
    end
  else
    next [404, { "Content-Type" => "text/plain", "Content-Length" => "10" }, ["not found\n"]]
  end
  [200, { "Content-Type" => "text/plain", "Content-Length" => ANSWER.bytesize.to_s }, [ANSWER]]
}
