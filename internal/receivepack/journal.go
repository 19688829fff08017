package receivepack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// entry is a push in the journal: a file for as long as something of it may be left over. The server and git with all that it starts have the
// file open with one lock between them (flock(2)), which ends with the last of them, however they end: who gets the lock knows that they are gone.
type entry struct {
	path     string
	file     *os.File // in this process, while git may run; else nil
	note     note
	ended    time.Time              // of git, or of the server that knew of it; what is younger is not its own
	beside   []*entry               // pushes to the same repository that ran when it ended
	seen     map[string]fs.FileInfo // locks that an atomic push had left; of the sweep alone
	agreed   bool                   // every hook has agreed to all of an atomic push: git was about to set the refs, or did
	unlocked chan struct{}          // closed once no lock is left
	blocked  chan struct{}          // closed once a lock could not be removed; unlocked may never be
	stuck    map[string]fs.FileInfo // such locks; guarded by sweeper.mu
}

// note is what the journal says of a push.
type note struct {
	Dir, Common string
	Start       int64  // ns since 1970
	Refs        byName `json:",omitempty"` // what may be locked, and what each is set to; "": deleted
	Olds        byName `json:",omitempty"` // of an atomic push: what each ref was before; "": not there
	Head        bool   // HEAD leads to one of them: git locks it as well

	Identity []string `json:",omitempty"` // of an atomic push: who pushes, as environment
	Off      []string `json:",omitempty"` // likewise: keys of the configuration that keep hooks from being run, quoted
}

// byName says something of refs. Their names are quoted in JSON, which has no place for bytes that are no UTF-8.
type byName map[string]string

// writeObject makes an object of it.
func (m byName) writeObject(w *bufio.Writer) {
	var text, quoted []byte
	separator := byte('{')
	for name, value := range m {
		quoted = strconv.AppendQuoteToASCII(quoted[:0], name)
		text = append(text[:0], separator, '"')
		for _, c := range quoted { // of ASCII without control characters
			if c == '"' || c == '\\' {
				text = append(text, '\\')
			}
			text = append(text, c)
		}
		text = strconv.AppendQuote(append(text, '"', ':'), value)
		_, _ = w.Write(text)
		separator = ','
	}
	if separator == '{' {
		_ = w.WriteByte('{')
	}
	_ = w.WriteByte('}')
}

// UnmarshalJSON reads what writeObject made.
func (m *byName) UnmarshalJSON(b []byte) error {
	var quoted map[string]string
	if err := json.Unmarshal(b, &quoted); err != nil {
		return err
	}
	*m = make(byName, len(quoted))
	for text, value := range quoted {
		name, err := strconv.Unquote(text)
		if err != nil {
			return err
		}
		(*m)[name] = value
	}
	return nil
}

// newNote is the note of a push: refs by their own names and by those that they lead to.
func newNote(dir, common string, updates []Update, before *refs.Snapshot) (note, error) {
	n := note{Dir: dir, Common: common, Start: time.Now().UnixNano(), Refs: make(map[string]string, len(updates))}
	for _, u := range updates {
		id := hexOf(u.New)
		n.Refs[string(u.Ref)] = id
		ref, ok, err := before.Lookup(u.Ref)
		if err != nil {
			return n, err
		}
		if ok && ref.Target != "" {
			n.Refs[string(ref.Target)] = id
		}
	}
	_, n.Head = n.Refs[string(before.Head().Target)]
	return n, nil
}

// hexOf is an ID as text; "": there is none.
func hexOf(id git.ObjectID) string {
	if id.IsZero() {
		return ""
	}
	var buf [64]byte
	return string(id.AppendHex(buf[:0]))
}

// write puts a push into the journal. It is not synced: what a loss of power leaves is older than the machine's start, and known by that.
func (n note) write(dir, id string) (*entry, error) {
	e := newEntry(filepath.Join(dir, id))
	e.note = n
	f, err := os.OpenFile(e.path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	e.file = f
	if err = lock(f); err == nil {
		err = n.writeTo(f)
	}
	if err != nil {
		e.forget()
		return nil, err
	}
	return e, nil
}

// writeTo writes the note by pieces, as there may be many refs.
func (n note) writeTo(f io.Writer) error {
	rest := n
	rest.Refs, rest.Olds = nil, nil
	text, err := json.Marshal(rest)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	_, _ = w.WriteString(`{"Refs":`)
	n.Refs.writeObject(w)
	if n.Olds != nil {
		_, _ = w.WriteString(`,"Olds":`)
		n.Olds.writeObject(w)
	}
	_ = w.WriteByte(',')
	_, _ = w.Write(text[1:])
	return w.Flush()
}

func lock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func newEntry(path string) *entry {
	return &entry{path: path, unlocked: make(chan struct{}), blocked: make(chan struct{})}
}

// agreedLine follows the note of an atomic push that every hook has agreed to.
const agreedLine = "agreed\n"

// agree notes that every hook has agreed to all of an atomic push.
func (e *entry) agree() error {
	e.agreed = true
	_, err := e.file.WriteString("\n" + agreedLine)
	return err
}

// maxNote bounds what is read of a file in the journal, in bytes.
const maxNote = 128 << 20

// readJournal reads what servers before this one have left. What cannot be read is given to aside.
func readJournal(dir string, aside func(path string, err error)) ([]*entry, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var left []*entry
	for _, f := range files {
		e := newEntry(filepath.Join(dir, f.Name()))
		e.ended = time.Now()
		known, err := e.read()
		switch {
		case err != nil:
			aside(e.path, err)
		case !known:
			e.forget()
		default:
			left = append(left, e)
		}
	}
	return left, nil
}

// read reads the note; it is not known if the file was cut off before there was one, and no git started.
func (e *entry) read() (known bool, err error) {
	f, err := disk.Open(e.path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxNote+1))
	switch {
	case err != nil:
		return false, err
	case len(text) == 0:
		return false, nil
	case len(text) > maxNote:
		return false, errors.New("the file is too long")
	}
	text, rest, _ := bytes.Cut(text, []byte("\n"))
	if err := json.Unmarshal(text, &e.note); err != nil {
		return false, err
	}
	if !filepath.IsAbs(e.note.Dir) || !filepath.IsAbs(e.note.Common) {
		return false, errors.New("the file names no repository")
	}
	e.agreed = string(rest) == agreedLine
	return true, nil
}

// files is what git inherits of it.
func (e *entry) files() []*os.File {
	if e == nil {
		return nil
	}
	return []*os.File{e.file}
}

// forget takes the push out of the journal.
func (e *entry) forget() {
	_ = os.Remove(e.path)
	if e.file != nil {
		e.file.Close()
		e.file = nil
	}
}

// gone tells whether nobody who took part in the push lives any more.
func (e *entry) gone() bool {
	f, err := os.OpenFile(e.path, os.O_RDWR, 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return lock(f) == nil
}

// slack is how far the clocks of a file system and of this process may be apart.
const slack = time.Second

// within tells whether a file was changed while the push ran.
func (e *entry) within(info fs.FileInfo) bool {
	at := info.ModTime()
	return !at.Before(time.Unix(0, e.note.Start).Add(-slack)) && !at.After(e.ended.Add(slack))
}

// Locks of a repository that are none of one ref.
const (
	headLock    = "HEAD.lock"
	shallowLock = "shallow.lock"
	tablesLock  = "reftable/tables.list.lock"
	packedLock  = "packed-refs.lock"
	packedNew   = "packed-refs.new" // git does not write over one that is there
)

// locks lists the lock files that a push to these refs may leave, and what each holds then; nil: anything.
func (n note) locks() map[string][]string {
	list := map[string][]string{filepath.Join(n.Common, shallowLock): nil, filepath.Join(n.Common, tablesLock): nil}
	if n.Head {
		list[filepath.Join(n.Dir, headLock)] = nil
	}
	for name, id := range n.Refs {
		if id == "" { // git takes what it deletes out of here too
			list[filepath.Join(n.Common, packedLock)] = nil
			list[filepath.Join(n.Common, packedNew)] = nil
		}
		if _, err := git.ParseRefName(name); err == nil {
			list[filepath.Join(n.Common, name+".lock")] = []string{"", id, id + "\n"} // git writes the end of the line by itself
		}
	}
	return list
}

// shared tells whether a lock is none of one ref: whatever it holds, it may be somebody else's.
func (n note) shared(path string) bool {
	below, err := filepath.Rel(n.Common, path)
	return err != nil || slices.Contains([]string{shallowLock, tablesLock, packedLock, packedNew}, below)
}

// mayHold tells whether a push to these refs may have one of these locks.
func (n note) mayHold(locks map[string]fs.FileInfo) bool {
	for path := range locks {
		below, err := filepath.Rel(n.Common, path)
		if err != nil {
			return true
		}
		switch below {
		case shallowLock, tablesLock:
			return true
		case packedLock, packedNew:
			for _, id := range n.Refs {
				if id == "" {
					return true
				}
			}
			continue
		}
		if n.Head && path == filepath.Join(n.Dir, headLock) {
			return true
		}
		if _, ok := n.Refs[strings.TrimSuffix(below, ".lock")]; ok {
			return true
		}
	}
	return false
}

// stale lists the locks that the push has left.
func (e *entry) stale() map[string]fs.FileInfo {
	found := make(map[string]fs.FileInfo)
	for path, holds := range e.note.locks() {
		info, err := os.Lstat(path)
		if err == nil && info.Mode().IsRegular() && e.within(info) && holdsOne(path, info, holds) {
			found[path] = info
		}
	}
	return found
}

func holdsOne(path string, info fs.FileInfo, texts []string) bool {
	if texts == nil {
		return true
	}
	for _, text := range texts {
		if info.Size() != int64(len(text)) {
			continue
		}
		got, err := os.ReadFile(path)
		if err == nil && string(got) == text {
			return true
		}
	}
	return false
}

// forgetMoved leaves of the locks that were seen those that are as they were.
func (e *entry) forgetMoved() {
	maps.DeleteFunc(e.seen, func(path string, was fs.FileInfo) bool { return !same(path, was) })
}

// same tells whether a file is the one that it was, and unchanged.
func same(path string, was fs.FileInfo) bool {
	is, err := os.Lstat(path)
	return err == nil && os.SameFile(is, was) && is.ModTime().Equal(was.ModTime()) && is.Size() == was.Size()
}

// keeps lists the files that keep a pack of the push from being packed anew. There may be more as long as a process lives that one names: it may be
// another's, or be dead and not buried yet.
func (e *entry) keeps() (list []string, more bool) {
	for path, pid := range keepFiles(e.note.Common, e.within) {
		if dead(pid) {
			list = append(list, path)
		} else {
			more = true
		}
	}
	return list, more
}

// keepFiles lists the files that keep packs from being packed anew, made by git receive-pack on this machine, with its process ID. Of processes
// of another machine nothing is known. What the administrator made says nothing, or something else.
func keepFiles(common string, within func(fs.FileInfo) bool) map[string]int {
	here, err := os.Hostname()
	if err != nil {
		here = "localhost" // as git writes then
	}
	dir := filepath.Join(common, "objects/pack")
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	found := make(map[string]int)
	for _, name := range names {
		if !strings.HasPrefix(name, "pack-") || !strings.HasSuffix(name, ".keep") {
			continue
		}
		path := filepath.Join(dir, name)
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || !within(info) || info.Size() > 1<<10 {
			continue
		}
		text, err := os.ReadFile(path)
		pid, host := 0, ""
		if _, scan := fmt.Sscanf(string(text), "receive-pack %d on %s", &pid, &host); err == nil && scan == nil && pid > 0 && host == here {
			found[path] = pid
		}
	}
	return found
}

// dead tells whether no process has a number.
func dead(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// quarantines lists the directories of new objects that the push may have left: nothing in them was changed after its end, nor for
// the time given. Git names them so since 2.35, and before.
func (e *entry) quarantines(idle time.Duration) (old []string, more bool) {
	for _, pattern := range []string{"tmp_objdir-incoming-*", "incoming-*"} {
		dirs, _ := filepath.Glob(filepath.Join(escapeGlob(e.note.Common), "objects", pattern))
		for _, dir := range dirs {
			latest := newest(dir)
			if latest == nil || !e.within(latest) {
				continue
			}
			if time.Since(latest.ModTime()) < idle {
				more = true
				continue
			}
			old = append(old, dir)
		}
	}
	return old, more
}

// newest is what was changed last of a directory and all below it.
func newest(dir string) (latest fs.FileInfo) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && (latest == nil || info.ModTime().After(latest.ModTime())) {
			latest = info
		}
		return nil
	})
	return latest
}
