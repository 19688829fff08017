package event

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// A journal is a directory of files with lines in JSON. The name of a file is the number of its first event. A file
// begins with the ID of the journal. A change has up to two lines: "begin" before it can be made, and "event" with its
// number when it was made, or "end" when it was not. All are synced, together with those of other changes, before the
// change goes on. A new file repeats the "begin" lines of changes that have not ended, so that only the last file is
// read at the start.

const (
	segmentBytes = 4 << 20
	maxBytes     = 1 << 30 // of all files
	maxPage      = 4 << 20 // bytes of a page of events, roughly
	suffix       = ".jsonl"
	eventPrefix  = `{"seq":`
)

// line is one line of a file. Seq comes first, see eventPrefix.
type line struct {
	Seq     uint64 `json:"seq,omitempty"` // of Event, from 1
	Event   *Event `json:"event,omitempty"`
	Begin   *Event `json:"begin,omitempty"`
	End     string `json:"end,omitempty"` // ID
	Journal string `json:"journal,omitempty"`
}

// JournalOptions configure a Journal. Dir is required.
type JournalOptions struct {
	Dir        string
	Registerer prometheus.Registerer // of metrics; may be nil
	Log        *slog.Logger
}

// Journal is a Log on a disk. It is a receivepack.Recorder.
//
// Lock order: syncing, mu.
type Journal struct {
	o       JournalOptions
	maxSize int64 // of a file in bytes, before it gets another line
	id      string
	metrics *metrics
	ctx     context.Context
	stop    context.CancelFunc
	retries sync.WaitGroup

	syncing sync.Mutex // held while a file is synced or replaced
	mu      sync.Mutex
	file    *os.File // the last one
	size    int64    // of file
	firsts  []uint64 // of all files
	offsets []int64  // of the events in file
	next    uint64   // number of the next event
	begun   []Event  // changes that have not ended
	written int64    // bytes, by this process
	synced  int64    // of them
	visible uint64   // events before this number are synced
	changed chan struct{}
	failed  error // of a sync: what is on disk is not known any more
}

// OpenJournal opens a journal, or creates it. A damaged one is moved aside.
func OpenJournal(o JournalOptions) (*Journal, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	j := &Journal{o: o, maxSize: segmentBytes, metrics: newMetrics(o.Registerer),
		changed: make(chan struct{})}
	j.ctx, j.stop = context.WithCancel(context.Background())
	err := j.open()
	if fault.Is(err, fault.Corrupt) {
		aside := o.Dir + ".damaged-" + strconv.FormatInt(time.Now().Unix(), 10)
		o.Log.Error("the journal of events is damaged; it was moved aside, and readers of events have to begin again",
			"dir", aside, "error", err)
		if err = os.Rename(o.Dir, aside); err == nil {
			err = j.open()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the journal of events: %w", err)
	}
	return j, nil
}

func (j *Journal) path(first uint64) string {
	return filepath.Join(j.o.Dir, fmt.Sprintf("%020d", first)+suffix)
}

func (j *Journal) open() (err error) {
	if err := os.MkdirAll(j.o.Dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(j.o.Dir)
	if err != nil {
		return err
	}
	j.firsts = nil
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if first, err := strconv.ParseUint(name, 10, 64); ok && err == nil {
			j.firsts = append(j.firsts, first)
		} else {
			_ = os.Remove(filepath.Join(j.o.Dir, e.Name())) // was not completed
		}
	}
	if len(j.firsts) == 0 {
		j.id, j.next = rand.Text(), 1
		return j.addFile()
	}
	if err = j.load(j.firsts[len(j.firsts)-1]); err == nil {
		j.removeOld()
	}
	return err
}

// load reads the last file, and removes a line at its end that is not complete.
func (j *Journal) load(first uint64) error {
	path := j.path(first)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	j.next, j.size = first, 0
	for rest := text; len(rest) > 0; {
		b, after, _ := bytes.Cut(rest, []byte{'\n'})
		var l line
		err := json.Unmarshal(b, &l)
		if err != nil || l.Event != nil && l.Seq != j.next || (j.size == 0) != (l.Journal != "") {
			return fault.New(fault.Corrupt, "%s: byte %d is not the beginning of a valid line", path, j.size)
		}
		j.id = cmp.Or(l.Journal, j.id)
		j.note(&l, j.size)
		j.size += int64(len(b) + 1)
		rest = after
	}
	if j.id == "" {
		return fault.New(fault.Corrupt, "%s: no first line", path)
	}
	if j.file, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0); err != nil {
		return err
	}
	j.visible = j.next
	return errors.Join(j.file.Truncate(j.size), j.file.Sync())
}

// note takes note of a line that is in the file.
func (j *Journal) note(l *line, offset int64) {
	id := l.End
	switch {
	case l.Begin != nil:
		j.begun = append(j.begun, *l.Begin)
		return
	case l.Event != nil:
		j.offsets = append(j.offsets, offset)
		j.next++
		id = l.Event.ID
	}
	j.begun = slices.DeleteFunc(j.begun, func(e Event) bool { return e.ID == id })
}

// addFile begins a new file, and removes old ones. syncing and mu are held, except while the Journal is opened.
func (j *Journal) addFile() error {
	if j.file != nil {
		if err := j.file.Sync(); err != nil {
			j.failed = err
			return err
		}
	}
	text, err := encode(line{Journal: j.id})
	for i := range j.begun {
		b, encodeErr := encode(line{Begin: &j.begun[i]})
		text, err = append(text, b...), cmp.Or(err, encodeErr)
	}
	path := j.path(j.next)
	var file *os.File
	if err == nil {
		err = disk.ReplaceFile(path, text)
	}
	if err == nil {
		file, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	}
	if err != nil {
		return err
	}
	if j.file != nil {
		j.file.Close()
	}
	j.file, j.size, j.offsets = file, int64(len(text)), nil
	if len(j.firsts) == 0 || j.firsts[len(j.firsts)-1] != j.next {
		j.firsts = append(j.firsts, j.next)
	}
	j.synced, j.visible = j.written, j.next
	j.removeOld()
	return nil
}

// removeOld removes the first files if they are old or too many.
func (j *Journal) removeOld() {
	for len(j.firsts) > 1 {
		info, err := os.Stat(j.path(j.firsts[0]))
		if err == nil && time.Since(info.ModTime()) < Keep && len(j.firsts) <= maxBytes/segmentBytes {
			return
		}
		if err := os.Remove(j.path(j.firsts[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			j.o.Log.Warn("cannot remove old events", "error", err)
			return
		}
		j.firsts = j.firsts[1:]
	}
}

func encode(l line) ([]byte, error) {
	b, err := json.Marshal(l)
	return append(b, '\n'), err
}

// append writes lines and syncs them. Events get their numbers.
func (j *Journal) append(lines ...line) error {
	written, err := j.write(lines)
	if err == nil {
		err = j.sync(written)
	}
	return fault.Wrap(fault.Unavailable, "cannot write the journal of events in the server's state directory", err)
}

func (j *Journal) write(lines []line) (written int64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.size > j.maxSize {
		j.mu.Unlock()
		j.syncing.Lock()
		defer j.syncing.Unlock()
		j.mu.Lock()
	}
	if j.failed != nil {
		return 0, j.failed
	}
	if j.size > j.maxSize { // if this fails halfway, no event may follow in the old file
		if err := j.addFile(); err != nil {
			return 0, err
		}
	}
	var text []byte
	next, starts := j.next, make([]int64, len(lines))
	for i := range lines {
		if lines[i].Event != nil {
			lines[i].Seq = next
			next++
		}
		b, err := encode(lines[i])
		if err != nil {
			return 0, err
		}
		starts[i] = j.size + int64(len(text))
		text = append(text, b...)
	}
	if _, err := j.file.Write(text); err != nil {
		if truncateErr := j.file.Truncate(j.size); truncateErr != nil {
			j.failed = errors.Join(err, truncateErr)
		}
		return 0, err
	}
	for i := range lines {
		j.note(&lines[i], starts[i])
		if lines[i].Event != nil {
			j.metrics.written.WithLabelValues(string(lines[i].Event.Kind)).Inc()
		}
	}
	j.size += int64(len(text))
	j.written += int64(len(text))
	return j.written, nil
}

// sync syncs the written lines, once for all callers that wait.
func (j *Journal) sync(target int64) error {
	j.syncing.Lock()
	defer j.syncing.Unlock()
	j.mu.Lock()
	file, written, next, isDone, err := j.file, j.written, j.next, j.synced >= target, j.failed
	j.mu.Unlock()
	if err != nil || isDone {
		return err
	}
	err = file.Sync()
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.failed = err
		return err
	}
	j.synced, j.visible = written, next
	close(j.changed)
	j.changed = make(chan struct{})
	return nil
}

// Begin implements receivepack.Recorder.
func (j *Journal) Begin(pushes ...*receivepack.Push) error {
	lines := make([]line, len(pushes))
	for i, p := range pushes {
		e := OfPush(p, p.Updates, time.Now())
		lines[i].Begin = &e
	}
	return j.append(lines...)
}

// End implements receivepack.Recorder. Events that cannot be written now are written later.
func (j *Journal) End(results ...receivepack.Result) error {
	var lines []line
	for _, r := range results {
		switch {
		case r.IsUnknown: // Recover finds out
		case len(r.Made) == 0:
			lines = append(lines, line{End: r.Push.ID})
		default:
			e := OfPush(r.Push, r.Made, time.Now())
			lines = append(lines, line{Event: &e})
		}
	}
	return j.finish(lines)
}

// finish writes the last lines of changes. After an error it repeats that in the background.
func (j *Journal) finish(lines []line) error {
	if len(lines) == 0 {
		return nil
	}
	err := j.append(lines...)
	if err != nil && j.ctx.Err() == nil {
		j.retries.Go(func() {
			for failures := 1; ; failures++ {
				if (retry.Policy{First: time.Second, Max: time.Minute}).Wait(j.ctx, failures, 0) != nil {
					return // the next process finds out what happened
				}
				again := j.append(lines...)
				if again == nil {
					return
				}
				j.o.Log.Warn("cannot record an event; trying again", "error", again)
			}
		})
	}
	return err
}

// Change makes a change that is not a push, and records its event. change can complete the event. The Journal may be
// nil.
func (j *Journal) Change(e *Event, change func() error) error {
	if j == nil {
		return change()
	}
	e.ID, e.Time = rand.Text(), time.Now()
	if err := j.append(line{Begin: e}); err != nil {
		return err
	}
	if err := change(); err != nil {
		_ = j.finish([]line{{End: e.ID}}) // it is repeated
		return err
	}
	e.Time = time.Now()
	err := j.finish([]line{{Event: e}})
	return fault.Wrap(fault.Unavailable, "the repository was changed, but the event cannot be recorded yet", err)
}

// Close ends the Journal.
func (j *Journal) Close() error {
	j.stop()
	j.retries.Wait()
	j.syncing.Lock()
	defer j.syncing.Unlock()
	return j.file.Close()
}

// Changed implements Log.
func (j *Journal) Changed() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.changed
}

// Read implements Log. A position is the ID of the journal and the number of the next event.
func (j *Journal) Read(ctx context.Context, after string, limit int) (events []Event, next string, err error) {
	j.mu.Lock()
	firsts, visible := slices.Clone(j.firsts), j.visible
	j.mu.Unlock()
	from := firsts[0]
	switch after {
	case "":
	case Now:
		from = visible
	default:
		n := uint64(0)
		if err := ParsePosition(after, j.id, &n); err != nil {
			return nil, "", err
		}
		if n < from || n > visible {
			return nil, "", OutOfRange(after, j.position(from))
		}
		from = n
	}
	bytes := int64(0)
	for from < visible && len(events) < limit && bytes < maxPage {
		if err := ctx.Err(); err != nil {
			return nil, "", err
		}
		file := max(0, len(firsts)-1)
		for firsts[file] > from {
			file--
		}
		page, n, err := j.readFile(firsts[file], from, visible, limit-len(events))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, "", OutOfRange(after, j.position(firsts[0]))
		}
		if err == nil && len(page) == 0 {
			err = fault.New(fault.Corrupt, "the journal of events does not have number %d", from)
		}
		if err != nil {
			return nil, "", err
		}
		events, from, bytes = append(events, page...), from+uint64(len(page)), bytes+n
	}
	return events, j.position(from), nil
}

func (j *Journal) position(next uint64) string { return j.id + "-" + strconv.FormatUint(next, 10) }

// readFile reads events of one file from a number on.
func (j *Journal) readFile(first, from, before uint64, limit int) (events []Event, read int64, err error) {
	f, err := os.Open(j.path(first))
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	j.mu.Lock()
	if at := from - first; first == j.firsts[len(j.firsts)-1] && at < uint64(len(j.offsets)) {
		_, err = f.Seek(j.offsets[at], io.SeekStart)
	}
	j.mu.Unlock()
	for in := bufio.NewReaderSize(f, 64<<10); err == nil && len(events) < limit && read < maxPage; {
		var b []byte
		if b, err = in.ReadBytes('\n'); err != nil || !bytes.HasPrefix(b, []byte(eventPrefix)) {
			continue
		}
		digits, _, _ := bytes.Cut(b[len(eventPrefix):], []byte{','})
		number, parseErr := strconv.ParseUint(string(digits), 10, 64)
		switch {
		case parseErr != nil:
			return events, read, fault.Wrap(fault.Corrupt, "the journal of events is damaged: "+j.path(first), parseErr)
		case number < from:
			continue
		case number >= before:
			return events, read, nil
		}
		var l line
		if err := json.Unmarshal(b, &l); err != nil || l.Event == nil {
			return events, read, fault.Wrap(fault.Corrupt, "the journal of events is damaged: "+j.path(first), err)
		}
		l.Event.Position = j.position(number + 1)
		events, read = append(events, *l.Event), read+int64(len(b))
	}
	if err == io.EOF {
		err = nil
	}
	return events, read, err
}

// pending returns the changes that have not ended, in the order of their beginning.
func (j *Journal) pending() []Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.begun)
}
