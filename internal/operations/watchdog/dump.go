package watchdog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// Dump describes a written dump.
type Dump struct {
	Dir   string   `json:"dir"`
	Files []string `json:"files"` // in Dir
	Notes []string `json:"notes"` // missing parts with reasons
}

// partPatience is the time limit for making one part of a dump, and for writing it.
const partPatience = 10 * time.Second

// Limits of parts in bytes. A longer part is cut off, or omitted if half of it is useless.
const (
	stackLimit   = 16 << 20
	profileLimit = 8 << 20
	textLimit    = 4 << 20
	notesLimit   = 4 << 10
	lastWords    = 64 << 10 // on standard error, if the directory does not take a dump
)

// notesName is the file with missing parts and reasons. There is always space for it.
const notesName = "notes.txt"

// manyGoroutines is the number above which stacks are only counted, because the process would stop for too long.
const manyGoroutines = 20_000

// piece is a part with its limits.
type piece struct {
	Part
	limit int
	text  bool // its beginning is of use
	stops bool // it stops the world
	extra time.Duration
}

// pieces returns the parts of a dump, the most important ones first in case the process is killed meanwhile.
func (w *Watchdog) pieces() []piece {
	list := []piece{
		{Part: Part{"processes.txt", func(to io.Writer) error { return WriteProcesses(to, os.Getpid()) }}, limit: textLimit,
			text: true},
		{Part: Part{"stacks.txt", writeStacks}, limit: stackLimit, text: true, stops: true},
		{Part: Part{"goroutines.txt", profile("goroutine", 1)}, limit: profileLimit, text: true, stops: true},
	}
	for _, name := range []string{"mutex", "heap"} {
		list = append(list, piece{Part: Part{name + ".pprof", profile(name, 0)}, limit: profileLimit})
	}
	for _, p := range w.Parts {
		list = append(list, piece{Part: p, limit: textLimit, text: true})
	}
	return append(list,
		piece{Part: Part{"cpu.pprof", w.writeCPU}, limit: profileLimit, extra: w.Profile},
		// Last, because reading a command line waits for a lock of that process, which may be stuck.
		piece{Part: Part{"commands.txt", func(to io.Writer) error { return WriteCommands(to, os.Getpid(), w.Redact) }},
			limit: textLimit, text: true})
}

// file is a part of a dump in memory.
type file struct {
	name string
	data []byte
}

// writing is a dump that is being written.
type writing struct {
	w     *Watchdog
	at    *draft // nil: the directory does not take it
	err   error  // the reason
	files []string
	notes []string
}

// write makes and writes a dump.
func (w *Watchdog) write(cause string, why []string) (Dump, error) {
	began := time.Now()
	d := &writing{w: w}
	d.at, d.err = w.place.draft(fmt.Sprintf("%s-%s-%d", began.UTC().Format(nameTime), cause, os.Getpid()))
	d.put(file{"why.txt", w.reasons(began, cause, why)})
	for _, p := range w.pieces() {
		if p.stops && w.startHangs() {
			d.note("%s: left out, since it stops the world, and that would wait for the start of a git process that hangs",
				p.Name)
			continue
		}
		data, err := w.collect(p)
		if err != nil {
			d.note("%s: %v", p.Name, err)
		}
		if len(data) > 0 {
			d.put(file{p.Name, data})
		}
	}
	if len(d.notes) > 0 {
		text := strings.Join(d.notes, "\n") + "\n"
		d.put(file{notesName, []byte(text[:min(len(text), notesLimit)])})
	}
	return d.end()
}

// reasons returns the text with the reasons for a dump.
func (w *Watchdog) reasons(now time.Time, cause string, why []string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, process %d, %s\n\ncause: %s\n", w.About, os.Getpid(), now.UTC().Format(time.RFC3339Nano), cause)
	for _, line := range why {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	fmt.Fprintf(&b, "\n%d goroutines, %d CPUs to run them on\n", runtime.NumGoroutine(), runtime.GOMAXPROCS(0))
	return []byte(b.String())
}

func (d *writing) note(format string, args ...any) {
	d.notes = append(d.notes, fmt.Sprintf(format, args...))
}

// put writes a part. If the directory does not take it, stacks go to standard error, which may hang as well.
func (d *writing) put(f file) {
	if d.err == nil {
		switch err := d.at.put(f); {
		case err == nil:
			d.files = append(d.files, f.name)
		case errors.Is(err, errFull):
			d.note("%s: %v", f.name, err)
		default:
			d.err = err
		}
	}
	if d.err != nil && f.name == "goroutines.txt" && d.w.Stderr != nil {
		text, err := f.data[:min(len(f.data), lastWords)], d.err
		go func() {
			fmt.Fprintf(d.w.Stderr, "packhorse: %s does not take a dump (%v); stacks:\n%s\n", d.w.Dir, err, text)
		}()
	}
}

// end gives the dump its final name.
func (d *writing) end() (Dump, error) {
	if d.err != nil {
		return Dump{}, fmt.Errorf("%s does not take the dump: %w", d.w.Dir, d.err)
	}
	dir, err := d.at.end()
	return Dump{Dir: dir, Files: d.files, Notes: append([]string{}, d.notes...)}, err
}

// collect makes a part in memory. After an error it still returns a part that is useful.
func (w *Watchdog) collect(p piece) ([]byte, error) {
	w.mu.Lock()
	busy := w.busy[p.Name]
	w.busy[p.Name] = true
	w.mu.Unlock()
	if busy {
		return nil, errors.New("the attempt of an earlier dump has not ended")
	}
	into := &buffer{limit: p.limit}
	done := make(chan error, 1)
	go func() {
		err := p.Write(into)
		w.mu.Lock()
		delete(w.busy, p.Name)
		w.mu.Unlock()
		done <- err
	}()
	patience := time.NewTimer(w.patience + p.extra)
	defer patience.Stop()
	var err error
	select {
	case err = <-done:
	case <-patience.C:
		err = fmt.Errorf("was not made within %v", w.patience+p.extra)
	}
	data, over := into.close()
	if over {
		err = errors.Join(err, fmt.Errorf("is longer than %d bytes", p.limit))
	}
	if err != nil && !p.text {
		data = nil
	}
	return data, err
}

// buffer keeps the first bytes written to it, until it is closed.
type buffer struct {
	limit int

	mu     sync.Mutex
	data   []byte
	over   bool
	closed bool
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, os.ErrClosed
	}
	if len(p) > b.limit-len(b.data) {
		b.data = append(b.data, p[:b.limit-len(b.data)]...)
		b.over = true
		return 0, io.ErrShortWrite
	}
	b.data = append(b.data, p...)
	return len(p), nil
}

func (b *buffer) close() (data []byte, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.data, b.over
}

// profile writes one of the runtime's profiles.
func profile(name string, debug int) func(io.Writer) error {
	return func(to io.Writer) error { return pprof.Lookup(name).WriteTo(to, debug) }
}

// writeStacks writes the stack of each goroutine, with the reason and duration of its wait.
func writeStacks(to io.Writer) error {
	n := runtime.NumGoroutine()
	if n > manyGoroutines {
		return fmt.Errorf("%d goroutines are too many for a stack of each; goroutines.txt has them together", n)
	}
	for size := min(64<<10+n<<11, stackLimit); ; size = min(2*size, stackLimit) {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size == stackLimit {
			_, err := to.Write(buf[:n])
			return err
		}
	}
}

// writeCPU writes a CPU profile. It fails if another profile is running.
func (w *Watchdog) writeCPU(to io.Writer) error {
	if err := pprof.StartCPUProfile(to); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	_ = retry.Sleep(w.stopped, w.Profile)
	return nil
}
