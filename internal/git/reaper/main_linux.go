package reaper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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

// A line of the server's is shorter than this, or not the server's.
const longestLine = 8 << 10

// reaper is the state of reap.
type reaper struct {
	mark    []byte // NAME=value
	session int
	cgroups []string
	groups  map[int]time.Duration // by number: their grace

	unread []byte // the begin of a line
	eof    bool   // there is no server any more, nor a child of its that has not its own environment yet

	end    int64          // when the server's end was noticed, in ticks since boot
	ended  time.Time      // the same
	asked  map[found]bool // were sent SIGTERM
	killed map[int]bool   // by number
}

// reap reads from in until the server has ended, and then kills the remaining processes of its commands. It logs only
// if there were any. It ignores the signals that usually end all processes of a server.
func reap(in *os.File, log *slog.Logger) error {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE)
	// If permitted: the reaper should not be killed first when memory runs out.
	os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0)
	server := os.Getppid()
	r := &reaper{groups: make(map[int]time.Duration), asked: make(map[found]bool), killed: make(map[int]bool)}
	if err := unix.SetNonblock(int(in.Fd()), true); err != nil {
		return fmt.Errorf("the reaper needs a pipe to its server: %w", err)
	}
	if err := r.listen(int(in.Fd()), openServer(server)); err != nil {
		return err
	}
	left := r.kill(int(in.Fd()))
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

// listen reads the server's lines until the server has ended.
func (r *reaper) listen(in, server int) error {
	poll := []unix.PollFd{{Fd: int32(in), Events: unix.POLLIN}, {Fd: int32(server), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
		if err := r.read(in); err != nil {
			return err
		}
		if r.eof || poll[1].Revents != 0 {
			break
		}
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return os.NewSyscallError("clock_gettime", err)
	}
	r.ended = time.Now()
	r.end = now.Nano() / (int64(time.Second) / ticksPerSecond)
	return nil
}

// read takes all that the pipe holds.
func (r *reaper) read(in int) error {
	buf := make([]byte, 16<<10)
	for !r.eof {
		n, err := unix.Read(in, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil:
			return os.NewSyscallError("read", err)
		case n == 0:
			r.eof = true
			return nil
		}
		r.unread = append(r.unread, buf[:n]...)
		for {
			line, rest, ok := bytes.Cut(r.unread, []byte("\n"))
			if !ok {
				break
			}
			if err := r.parseLine(string(line)); err != nil {
				return err
			}
			r.unread = rest
		}
		if len(r.unread) > longestLine {
			return errors.New("the reaper was sent a line that is too long")
		}
		r.unread = bytes.Clone(r.unread)
	}
	return nil
}

// parseLine applies a line of the server. An unknown line ends the reaper: no reaper is better than one that kills the
// wrong processes.
func (r *reaper) parseLine(line string) error {
	bad := fmt.Errorf("the reaper does not understand %.40q", line)
	if dir, ok := strings.CutPrefix(line, "cgroup "); ok {
		if !filepath.IsAbs(dir) {
			return bad
		}
		r.cgroups = append(r.cgroups, dir)
		return nil
	}
	if rest, ok := strings.CutPrefix(line, "run "); ok {
		var mark string
		if n, err := fmt.Sscanf(rest, "%s %d", &mark, &r.session); n != 2 || err != nil || len(mark) != 32 {
			return bad
		}
		r.mark = []byte(Mark + "=" + mark)
		return nil
	}
	if len(line) < 2 || r.mark == nil {
		return bad
	}
	number, rest, _ := strings.Cut(line[1:], " ")
	pid, err := strconv.Atoi(number)
	switch {
	case err != nil || pid <= 1:
		return bad
	case line[0] == '+':
		ms, err := strconv.ParseInt(rest, 10, 32)
		if err != nil || ms < 0 {
			return bad
		}
		r.groups[pid] = min(time.Duration(ms)*time.Millisecond, longestGrace)
	case line[0] == '-':
		delete(r.groups, pid)
	default:
		return bad
	}
	return nil
}

// kill kills until no processes remain, and returns those that remain when its patience ends.
func (r *reaper) kill(in int) (left []int) {
	if r.mark == nil {
		return nil // no server has begun to say anything
	}
	quiet := 0
	for pause := firstLook; quiet < quietLooks; pause = min(2*pause, lastLook) {
		gone := r.eof
		left = left[:0]
		waits := false
		for _, p := range r.remaining() {
			signal := unix.SIGKILL
			if time.Since(r.ended) < r.groups[p.group] {
				signal, waits = unix.SIGTERM, true
			}
			if signal == unix.SIGTERM && (r.asked[p.id()] || p.start > r.end) {
				// It got SIGTERM, or was started since, perhaps by a trap that removes a lock.
				left = append(left, p.pid)
			} else if p.signal(signal) {
				r.asked[p.id()] = true
				r.killed[p.pid] = true
				left = append(left, p.pid)
			}
		}
		if !waits {
			for _, dir := range r.cgroups {
				gone = killCgroup(dir) && gone
			}
		}
		switch {
		case len(left) == 0 && gone:
			quiet++
			pause = firstLook
		case time.Since(r.ended) > patience:
			return left
		default:
			quiet = 0
		}
		time.Sleep(pause)
		if err := r.read(in); err != nil {
			r.eof = true
		}
	}
	for _, dir := range r.cgroups {
		unix.Rmdir(dir)
	}
	return nil
}

// killCgroup kills the processes in a cgroup and below it, and reports whether there are none.
func killCgroup(dir string) bool {
	events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err != nil || bytes.Contains(events, []byte("populated 0")) {
		return true
	}
	// Without O_CREATE: the directory may have been replaced by one that is not a cgroup.
	f, err := os.OpenFile(filepath.Join(dir, "cgroup.kill"), os.O_WRONLY, 0)
	if err != nil {
		return true // Linux before 5.14: the processes are found in the other ways
	}
	defer f.Close()
	io.WriteString(f, "1")
	return false
}
