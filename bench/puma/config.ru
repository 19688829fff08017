# The application of `.ci/workers`: what a request needs is fixed, and so are the answers. WORK is how many steps of counting one request is (calibrate.rb finds
# how many take as long as wanted on this machine: the work is a number of steps and not a time, so that who shares a CPU takes longer), PAUSE how many seconds it waits.
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
  when "/ready" then nil # the trivial one
  when "/work" then work(WORK)
  when "/sleep" then wait
  when "/mixed" # half of each
    sleep PAUSE / 2
    work(WORK / 2)
  when "/lock" # one at a time in a process, in ten turns: as with the interpreter's lock and a request of ten of its time slices, but without the CPU
    left = PAUSE
    while left > 0.0002
      LOCK.synchronize do
        began = now
        sleep [left, PAUSE / 10].min
        left -= now - began # it wakes a little late each time
      end
      Thread.pass # who waits for the lock is next
    end
  else
    next [404, { "Content-Type" => "text/plain", "Content-Length" => "10" }, ["not found\n"]]
  end
  [200, { "Content-Type" => "text/plain", "Content-Length" => ANSWER.bytesize.to_s }, [ANSWER]]
}
