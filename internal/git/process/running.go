package process

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Running describes a running command.
type Running struct {
	Pid        int // of the process, and of its group
	Class      Class
	Subcommand string
	Args       string         // arguments after "git", without secrets, for logs
	Repository string         // path in the request; without a request, the path of its directory
	Caller     balance.Caller // "": the server itself
	Request    string         // inflight.Request.ID of its request; "": none
	Stage      string         // of that request; ""
	Age        time.Duration  // since the start
	Queue      time.Duration  // waited for a slot before
	In, Out    int64          // bytes so far, as in Usage
	Live
}

// Live has the resources that a command has used, with all its processes that live or were waited for. Fields are zero
// if the system does not report them.
type Live struct {
	User, System time.Duration
	Delay        time.Duration // time for which living processes waited for a CPU
	RSS          int64         // bytes, of all processes together; shared pages count in each
	Processes    int
}

// Limits of the processes of one command that Live counts, and of the threads of each.
const (
	maxProcesses = 64
	maxThreads   = 64
)

// Running lists the running commands, the oldest first. It reads a few files of /proc for each, which takes about 40
// µs. So do not call it often.
func (r *Runner) Running() []Running {
	r.mu.Lock()
	all := make([]*Process, 0, len(r.running))
	for p := range r.running {
		all = append(all, p)
	}
	r.mu.Unlock()
	now := time.Now()
	list := make([]Running, 0, len(all))
	for _, p := range all {
		if one, ok := p.now(now); ok {
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b Running) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.Pid,
			b.Pid))
	})
	return list
}

// ClassState is the use of a class's slots at one moment.
type ClassState struct {
	Class              Class
	Used, Queued, Size int
}

// States returns the state of all classes, by name.
func (r *Runner) States() []ClassState {
	var all []ClassState
	for name, c := range r.classes {
		all = append(all, ClassState{name, c.slots.InUse(), c.slots.Queued(), c.slots.Limit()})
	}
	slices.SortFunc(all, func(a, b ClassState) int { return cmp.Compare(a.Class, b.Class) })
	return all
}

// now returns the state of a process; ok is false if it has ended.
func (p *Process) now(at time.Time) (Running, bool) {
	one := Running{
		Pid: p.process.Pid, Class: p.command.Class, Subcommand: p.command.Subcommand, Args: sanitised(p.command.Args),
		Repository: printable(cmp.Or(p.request.Repository(), p.command.Repository)), Caller: p.command.Caller,
		Age: at.Sub(p.began), Queue: p.waited, In: p.in.Load(), Out: p.stdout.n.Load(),
	}
	if p.request != nil {
		one.Request, one.Stage = p.request.ID(), p.request.Stage().String()
	}
	p.mu.Lock() // until it is unlocked, the number cannot be reused
	defer p.mu.Unlock()
	if p.reaped {
		return one, false
	}
	one.Live = live(p.process.Pid)
	return one, true
}

// activity returns the part that counts for a request.
func (u *Usage) activity() inflight.Usage {
	return inflight.Usage{Commands: 1, User: u.User, System: u.System, Queue: u.Queue, MaxRSS: u.MaxRSS, In: u.In,
		Out: u.Out}
}

const (
	longestArg  = 200  // bytes of one argument that are shown
	longestArgs = 1000 // of all
)

// sanitised returns a command line for logs: on one line, of limited length, without user names and passwords in URLs.
func sanitised(args []string) string {
	var b strings.Builder
	for i, arg := range args {
		if i > 0 {
			b.WriteByte(' ')
		}
		arg = printable(withoutUserInfo(arg))
		if arg == "" || strings.ContainsAny(arg, " '\"") {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		if b.Len()+len(arg) > longestArgs {
			b.WriteString("...")
			break
		}
		b.WriteString(arg)
	}
	return b.String()
}

// printable replaces characters that could forge a log line or move a terminal's cursor, and cuts long texts.
func printable(s string) string {
	cut := ""
	if len(s) > longestArg {
		s, cut = s[:longestArg], "..."
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?")) + cut
}

// withoutUserInfo takes the user name and password out of a URL.
func withoutUserInfo(arg string) string {
	scheme, rest, ok := strings.Cut(arg, "://")
	if !ok {
		return arg
	}
	host, path, slash := strings.Cut(rest, "/")
	at := strings.LastIndexByte(host, '@')
	if at < 0 {
		return arg
	}
	arg = scheme + "://" + host[at+1:]
	if slash {
		arg += "/" + path
	}
	return arg
}
