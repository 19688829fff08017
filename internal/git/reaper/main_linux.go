package reaper

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const supported = true

// Intervals at which the reaper checks that the killed processes have ended, and how long it tries. A process in an
// uninterruptible wait ends only after that wait.
const (
	firstLook = time.Millisecond
	lastLook  = time.Second
	patience  = 10 * time.Minute

	longestGrace = time.Minute

	// One scan can miss a process whose parent ended during the scan, so several scans must find none.
	quietLooks = 3
)

// A reaper starts here, before the other packages of the program are initialized. Their tables take 12 MB and most of
// the time of a start, and the reaper is for machines that run out of memory.
//
// Packages are initialized in the order of their paths, as far as their imports allow (the Go specification, "Program
// initialization"). So this package must not import a package that imports regexp, such as Prometheus' client.
func init() {
	if len(os.Args) < 4 || os.Args[1] != Name {
		return
	}
	if info, err := os.Stdin.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return // no server has started it
	}
	r := &reaper{in: int32(os.Stdin.Fd()), mark: []byte(Mark + "=" + os.Args[3]), killed: make(map[int]bool)}
	if err := r.reap(logger(os.Stderr, os.Args[2])); err != nil {
		fmt.Fprintln(os.Stderr, "packhorse:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// logger returns a logger in a format of the server's configuration (observe.NewLogger). The reaper logs no secrets, so
// nothing is redacted.
func logger(to *os.File, format string) *slog.Logger {
	_, err := unix.IoctlGetTermios(int(to.Fd()), unix.TCGETS)
	if format == "text" || format == "auto" && err == nil {
		return slog.New(slog.NewTextHandler(to, nil))
	}
	return slog.New(slog.NewJSONHandler(to, nil))
}

// spawn starts a reaper in a separate session, so that it gets no signals of a terminal. It logs to the server's
// standard error.
func spawn(command []string, stdin *os.File) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	program := command[0]
	if self, err := os.Executable(); err == nil && self == program {
		program = "/proc/self/exe" // this program, even if its file was replaced
	}
	// If the disk hangs, it hangs here. In the child it would block a CPU of the Go runtime until the exec.
	if f, err := os.Open(program); err == nil {
		f.Read(make([]byte, 4<<10))
		f.Close()
	}
	return os.StartProcess(program, command, &os.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1", "LC_ALL=C"}, Files: []*os.File{stdin, null, os.Stderr},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// reaper is the state of reap.
type reaper struct {
	in   int32  // the pipe
	mark []byte // NAME=value

	ended  time.Time    // when the server's end was noticed
	killed map[int]bool // by number
}

// reap waits until the server has ended, and then kills the remaining processes of its commands. It logs only if there
// were any. It ignores the signals that usually end all processes of a server.
func (r *reaper) reap(log *slog.Logger) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE)
	// If permitted: the reaper should not be killed first when memory runs out.
	os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0)
	server := os.Getppid()
	if err := r.await(openServer(server)); err != nil {
		return err
	}
	r.ended = time.Now()
	left := r.kill()
	switch {
	case len(left) > 0:
		log.Error("the server ended, and processes of its git commands cannot be killed", "server", server,
			"processes", left)
	case len(r.killed) > 0:
		log.Warn("the server ended; killed the remaining processes of its git commands", "server", server, "processes",
			len(r.killed),
			"took", time.Since(r.ended).Round(time.Millisecond).String())
	}
	return nil
}

// openServer returns a file descriptor that becomes readable when the server ends, or -1. The end of the pipe shows the
// same, but later if a child of the server hangs before its exec.
func openServer(pid int) int {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	if os.Getppid() != pid { // it ended before, and the number may be another's
		unix.Close(fd)
		return -1
	}
	return fd
}

// await waits until the server has ended, or has closed its pipe.
func (r *reaper) await(server int) error {
	fds := []unix.PollFd{{Fd: r.in}, {Fd: int32(server), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, -1)
		if n > 0 {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
	}
}

// pipeEnded reports whether there is no server any more, nor a child of it that has not its own environment yet.
func (r *reaper) pipeEnded() bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: r.in}}, 0)
	return n > 0
}

// kill kills until no processes remain, and returns those that remain when its patience ends. Processes with a grace
// period get SIGTERM once, in the first scan. Those that appear later may be about to remove a lock.
func (r *reaper) kill() (left []int) {
	quiet, first := 0, true
	for pause := firstLook; quiet < quietLooks; pause = min(2*pause, lastLook) {
		ended := r.pipeEnded()
		left = left[:0]
		for _, p := range r.remaining() {
			left = append(left, p.pid)
			signal := unix.SIGKILL
			if time.Since(r.ended) < p.grace {
				if !first {
					continue
				}
				signal = unix.SIGTERM
			}
			if p.signal(signal) {
				r.killed[p.pid] = true
			}
		}
		first = false
		switch {
		case len(left) == 0 && ended:
			quiet++
			pause = firstLook
		case time.Since(r.ended) > patience:
			return left
		default:
			quiet = 0
		}
		time.Sleep(pause)
	}
	return nil
}
