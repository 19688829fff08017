package watchdog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
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
	traceLimit   = 64 << 20
	textLimit    = 4 << 20
	notesLimit   = 4 << 10
	lastWords    = 64 << 10 // on standard error, when no directory takes a dump
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
	if w.recorder != nil {
		list = append(list, piece{Part: Part{"trace.out", w.writeTrace}, limit: traceLimit, stops: true, extra: w.Profile})
	}
	for _, name := range []string{"mutex", "block", "goroutine", "heap"} {
		list = append(list, piece{Part: Part{name + ".pprof", profile(name, 0)}, limit: profileLimit,
			stops: name == "goroutine"})
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

// writing is a dump that is being written to a place.
type writing struct {
	w     *Watchdog
	name  string
	at    *draft // nil: no place takes it
	left  []*place
	made  []file // all that there is so far, for another place should this one hang
	notes []string
	errs  []error
}

// write makes and writes a dump.
func (w *Watchdog) write(cause string, why []string) (Dump, error) {
	began := time.Now()
	d := &writing{w: w, left: w.places}
	d.name = fmt.Sprintf("%s-%s-%d", began.UTC().Format(nameTime), cause, os.Getpid())
	d.next()
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

// next selects the next place that accepts the dump.
func (d *writing) next() {
	d.at = nil
	for len(d.left) > 0 {
		p := d.left[0]
		d.left = d.left[1:]
		at, err := p.draft(d.name)
		if err == nil {
			for _, f := range d.made {
				if err = at.put(f); err != nil {
					at.drop()
					break
				}
			}
		}
		if err == nil {
			d.at = at
			return
		}
		d.failed(p, err)
	}
	if text := d.stacks(); d.w.Stderr != nil && len(text) > 0 {
		d.lastWords(text)
	}
}

func (d *writing) failed(p *place, err error) {
	d.note("%s does not take the dump: %v", p.dir, err)
	d.errs = append(d.errs, fmt.Errorf("%s: %w", p.dir, err))
}

// put writes a part, to another place if necessary.
func (d *writing) put(f file) {
	d.made = append(d.made, f)
	if d.at == nil {
		if f.name == "goroutines.txt" && d.w.Stderr != nil {
			d.lastWords(f.data)
		}
		return
	}
	err := d.at.put(f)
	if err == nil {
		return
	}
	if errors.Is(err, errFull) {
		d.made = d.made[:len(d.made)-1]
		d.note("%s: %v", f.name, err)
		return
	}
	d.failed(d.at.place, err)
	d.at.drop()
	d.next()
}

func (d *writing) stacks() []byte {
	for _, f := range d.made {
		if f.name == "goroutines.txt" {
			return f.data
		}
	}
	return nil
}

// lastWords writes stacks to standard error, which may hang as well.
func (d *writing) lastWords(text []byte) {
	text = text[:min(len(text), lastWords)]
	go func() {
		fmt.Fprintf(d.w.Stderr, "packhorse: no directory takes a dump (%v); stacks:\n%s\n", errors.Join(d.errs...), text)
	}()
}

// end gives the dump its final name.
func (d *writing) end() (Dump, error) {
	if d.at == nil {
		return Dump{}, errors.Join(append(d.errs, errors.New("no directory takes the dump"))...)
	}
	dir, err := d.at.end()
	if err != nil {
		return Dump{}, err
	}
	out := Dump{Dir: dir, Files: []string{}, Notes: append([]string{}, d.notes...)}
	for _, f := range d.made {
		out.Files = append(out.Files, f.name)
	}
	return out, nil
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
