# Prints the number of steps of config.ru's work that take the given milliseconds of CPU time. It is the median of several
# tries, so that other work on the machine has little effect.
wanted = Float(ARGV.fetch(0)) / 1000
def run(_) = nil
load File.join(__dir__, "config.ru")
steps = 200_000
work(steps)
tries = Array.new(15) do
  began = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
  work(steps)
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) - began
end
puts (steps * wanted / tries.sort[tries.size / 2]).round(-2)
