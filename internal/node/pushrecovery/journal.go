package pushrecovery

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// The journal is a directory with one file for each push. The file's name is the ID of the push. The file exists from
// before git receive-pack is started until everything that the push may have left behind is removed.
//
// The server holds an exclusive flock(2) on the file. git receive-pack and all processes that it starts inherit the
// descriptor, and with it the lock. So the push has processes left as long as the file is locked, whichever of them was
// killed. The lock works on local file systems only.
//
// A file begins with a line in JSON, which has the number of the lines with refs that follow. When all hooks have
// accepted an atomic push and Git is about to change the refs, the line "agreed" is added. The line "settled" follows
// when the push is complete, or certain not to begin: later changes may set its refs to their old values again.
//
// Git is started only after the record is written. A file with an incomplete record therefore belongs to a push that
// changed nothing, and is removed. The file is not synced: locks that are older than the boot of the machine are
// recognized by their time.

// journalVersion is the version of the format.
const journalVersion = 1

const (
	agreedLine  = "agreed\n"
	settledLine = "settled\n"
)

// errIncomplete reports a file without a complete record.
var errIncomplete = errors.New("push journal: the record is incomplete")

// Record describes one push.
type Record struct {
	GitDir    string    // absolute path
	CommonDir string    // absolute path; GitDir unless the repository is a linked worktree
	Start     time.Time // when the push began

	// Refs has every ref that the push may lock, with its new value. The zero ID means that the ref is deleted.
	Refs map[git.RefName]git.ObjectID
	// Old has the value of each ref before an atomic push. The zero ID means that the ref did not exist. It is nil for
	// other pushes, and for those that are settled.
	Old map[git.RefName]git.ObjectID

	LocksHead      bool     // the push also locks HEAD, because HEAD points to one of Refs
	Committer      []string // environment variables that git update-ref needs to complete the push
	DisabledConfig []string // configuration keys that have to be false then
	Agreed         bool     // every hook has accepted all updates, so that Git was about to change the refs
}

// recordHeader is the first line of a file. Paths and keys can have any bytes, and are in base64.
type recordHeader struct {
	Version   int      `json:"version"`
	GitDir    []byte   `json:"git_dir"`
	CommonDir []byte   `json:"common_dir"`
	Start     int64    `json:"start"` // in nanoseconds since 1970
	LocksHead bool     `json:"locks_head"`
	Committer [][]byte `json:"committer"`
	Disabled  [][]byte `json:"disabled"`
	Refs      int      `json:"refs"` // number of lines with Record.Refs: an ID, or "-" for zero, and a quoted name
	Old       int      `json:"old"`  // the same of Record.Old
}

// IsAtomic reports whether either all refs of the push change or none.
func (r *Record) IsAtomic() bool { return len(r.Old) > 0 }

// deletes reports whether the push deletes a ref.
func (r *Record) deletes() bool {
	for _, id := range r.Refs {
		if id.IsZero() {
			return true
		}
	}
	return false
}

// write encodes the record. It writes in pieces, because there can be many refs.
func (r *Record) write(w io.Writer) error {
	texts := func(values []string) (list [][]byte) {
		for _, value := range values {
			list = append(list, []byte(value))
		}
		return list
	}
	b := bufio.NewWriter(w)
	err := json.NewEncoder(b).Encode(recordHeader{Version: journalVersion, GitDir: []byte(r.GitDir),
		CommonDir: []byte(r.CommonDir), Start: r.Start.UnixNano(), LocksHead: r.LocksHead, Committer: texts(r.Committer),
		Disabled: texts(r.DisabledConfig), Refs: len(r.Refs), Old: len(r.Old)})
	if err != nil {
		return err
	}
	var line []byte
	for _, values := range []map[git.RefName]git.ObjectID{r.Refs, r.Old} {
		for name, id := range values {
			if line = append(line[:0], '-'); !id.IsZero() {
				line = id.AppendHex(line[:0])
			}
			line = strconv.AppendQuoteToASCII(append(line, ' '), string(name))
			_, _ = b.Write(append(line, '\n'))
		}
	}
	if r.Agreed {
		_, _ = b.WriteString(agreedLine)
	}
	return b.Flush()
}

// maxLine is the maximum length of a line in bytes.
const maxLine = 1 << 20

// readRecord decodes a record. The error is errIncomplete if it was not written to its end.
func readRecord(r io.Reader) (*Record, error) {
	b := bufio.NewReaderSize(r, maxLine)
	line, err := b.ReadSlice('\n')
	if err == io.EOF {
		return nil, errIncomplete
	}
	var h recordHeader
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	if err == nil && h.Version != journalVersion {
		err = fmt.Errorf("unknown version %d, want %d", h.Version, journalVersion)
	}
	record := &Record{GitDir: string(h.GitDir), CommonDir: string(h.CommonDir), Start: time.Unix(0, h.Start),
		LocksHead: h.LocksHead}
	if err == nil && (h.Refs < 0 || h.Old < 0) {
		err = errors.New("a number of refs is negative")
	}
	if err == nil && (!filepath.IsAbs(record.GitDir) || !filepath.IsAbs(record.CommonDir) || h.Start == 0) {
		err = errors.New("the record has no repository or no start time")
	}
	for _, value := range h.Committer {
		record.Committer = append(record.Committer, string(value))
	}
	for _, key := range h.Disabled {
		record.DisabledConfig = append(record.DisabledConfig, string(key))
	}
	if err == nil {
		record.Refs, err = readRefs(b, h.Refs)
	}
	if err == nil {
		record.Old, err = readRefs(b, h.Old)
	}
	for name := range record.Old {
		if _, ok := record.Refs[name]; !ok && err == nil {
			err = fmt.Errorf("the ref %q has an old value and no new one", name)
		}
	}
	if err == io.EOF {
		return nil, errIncomplete
	} else if err != nil {
		return nil, fmt.Errorf("push journal: %w", err)
	}
	for err == nil {
		line, err = b.ReadSlice('\n')
		switch string(line) {
		case agreedLine:
			record.Agreed = true
		case settledLine:
			record.Old = nil
		}
	}
	if err == io.EOF {
		err = nil
	}
	return record, err
}

// readRefs reads n lines with refs. The error is io.EOF if there are less.
func readRefs(b *bufio.Reader, n int) (values map[git.RefName]git.ObjectID, err error) {
	for range n {
		line, err := b.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		hex, quoted, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		text, err := strconv.Unquote(quoted)
		var name git.RefName
		if err == nil {
			name, err = git.ParseRefName(text)
		}
		var id git.ObjectID
		if err == nil && hex != "-" {
			id, err = git.ParseObjectID(hex)
		}
		if err == nil && hex != "-" && id.IsZero() {
			err = errors.New(`the zero ID is written as "-"`)
		}
		if err != nil {
			return nil, fmt.Errorf("invalid line %.200q: %w", line, err)
		}
		if values == nil {
			values = make(map[git.RefName]git.ObjectID)
		}
		values[name] = id
	}
	return values, nil
}

// create adds a push to the journal and locks its file.
func (r *Recovery) create(id string, record Record) (*Push, error) {
	p := newPush(filepath.Join(r.Journal, id), record, time.Time{})
	f, err := os.OpenFile(p.path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	p.file = f
	if err = flock(f, unix.LOCK_EX); err == nil {
		err = record.write(f)
	}
	if err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

// read reads the pushes of earlier servers and creates the directory if it does not exist. It removes files of pushes
// that never started, and moves those that cannot be read.
func (r *Recovery) read() (pushes []*Push, err error) {
	if err := os.MkdirAll(r.Journal, 0o700); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(r.Journal)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		path := filepath.Join(r.Journal, f.Name())
		switch record, err := readFile(path); {
		case errors.Is(err, errIncomplete):
			_ = os.Remove(path)
		case err != nil:
			r.reject(path, err)
		default:
			pushes = append(pushes, newPush(path, *record, time.Now()))
		}
	}
	return pushes, nil
}

func readFile(path string) (*Record, error) {
	f, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readRecord(f)
}

// id returns the ID of the push.
func (p *Push) id() string { return filepath.Base(p.path) }

// Files returns the locked file, for the Git process to inherit.
func (p *Push) Files() []*os.File { return []*os.File{p.file} }

// MarkAgreed notes that every hook has accepted an atomic push.
func (p *Push) MarkAgreed() error {
	p.Agreed = true
	_, err := p.file.WriteString(agreedLine)
	return err
}

// MarkSettled notes that an atomic push is complete, or that it will not begin.
func (p *Push) MarkSettled() error {
	if p.file != nil { // it may run on
		p.Old = nil
		_, err := p.file.WriteString(settledLine)
		return err
	}
	f, err := os.OpenFile(p.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(settledLine)
	return err
}

// release gives up this process's share of the lock. The push stays in the journal.
func (p *Push) release() {
	if p.file != nil {
		p.file.Close()
		p.file = nil
	}
}

// remove deletes the push from the journal.
func (p *Push) remove() {
	_ = os.Remove(p.path)
	p.release()
}

// isActive reports whether a process still holds the lock. It is true if that cannot be determined.
func (p *Push) isActive() bool {
	f, err := os.Open(p.path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return flock(f, unix.LOCK_SH) != nil // shared: two checks at the same time do not disturb each other
}

// flock locks a file without waiting.
func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
