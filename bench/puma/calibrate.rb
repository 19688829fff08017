# Prints how many steps of config.ru's work take so many milliseconds of CPU here: the median of a few tries, so that other work on the machine counts little.
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
