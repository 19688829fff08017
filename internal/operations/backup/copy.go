package backup

import (
	"bytes"
	"cmp"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// list describes the files of a unit. It is in the unit, as lines of JSON: a list, and records.
type list struct {
	ID string `json:"id"`
}

// record describes a file, a directory or a symbolic link of a unit.
type record struct {
	Name   string      `json:"name"`
	Mode   fs.FileMode `json:"mode"`
	Time   int64       `json:"time,omitempty"` // of modification, in nanoseconds since 1970
	Sum    string      `json:"sha256,omitempty"`
	Target string      `json:"target,omitempty"` // of a symbolic link
}

// readList reads the beginning of the list of a unit in a directory.
func readList(dir string) (l list, err error) {
	f, err := os.Open(filepath.Join(dir, listName))
	if err != nil {
		return l, err
	}
	defer f.Close()
	return l, json.NewDecoder(f).Decode(&l)
}

// readRecords reads the records of a unit in a directory, if its list has a SHA-256.
func readRecords(dir, sum string) (records []record, err error) {
	text, err := os.ReadFile(filepath.Join(dir, listName))
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(text)
	decoder := json.NewDecoder(bytes.NewReader(text))
	err = decoder.Decode(&list{})
	links := map[string]bool{}
	for err == nil && decoder.More() {
		var r record
		if err = decoder.Decode(&r); err == nil && !isInside(r.Name) {
			err = fmt.Errorf("it has the file %q", r.Name)
		}
		links[r.Name] = r.Target != ""
		records = append(records, r)
	}
	for _, r := range records {
		for dir := filepath.Dir(r.Name); dir != "."; dir = filepath.Dir(dir) {
			if links[dir] {
				err = fmt.Errorf("it has the file %q below a link", r.Name)
			}
		}
	}
	if err != nil || hex.EncodeToString(hash[:]) != sum {
		return nil, fault.New(fault.Corrupt, "%s is damaged: its checksum is wrong", filepath.Join(dir, listName))
	}
	return records, nil
}

// stored is a file in a backup.
type stored struct {
	path, sum string // an empty sum is not known
	time      int64  // of modification, if a later change would have another one; 0 otherwise
}

// copier copies one source into a new unit.
//
// The copy is a state that the repository had. Its refs and other changing files are the same before and after they are
// read. The objects come afterwards, so that all objects are there that the refs reach. Git moves an object from one
// file to another by making the second one first. So a file that vanishes only means that the list is read again.
// Collections remove objects for good. If any file has vanished since before the refs were read, the refs have to be
// the same once more.
//
// The copy of a part of the state may have files that only grow, such as a journal. It has what the part had at the
// time of the scan, and perhaps the beginning of what was appended since, as after a crash.
type copier struct {
	*run
	source  source
	network string // from which the repository borrows
	id, to  string
	state   *state
	damage  error // of the first damaged file
	records []record
	has     map[string]stored // files in the former unit, by name
	done    map[string]record // fixed files of the copy
}

// settled is the age from which a file is another one after each change, also in file systems with coarse times.
const settled = 10 * time.Second

// find finds the files in the former unit.
func (c *copier) find(was unit) {
	c.has, c.done = map[string]stored{}, map[string]record{}
	if !was.IsBad {
		dir := filepath.Join(c.Dir, c.source.place)
		records, _ := readRecords(dir, was.List)
		for _, r := range records {
			has := stored{path: filepath.Join(dir, r.Name), sum: r.Sum}
			if r.Time < was.At.Add(-settled).UnixNano() {
				has.time = r.Time
			}
			c.has[r.Name] = has
		}
	}
}

// maxRounds is how often something is copied that changes meanwhile.
const maxRounds = 20

func (c *copier) copy(ctx context.Context) error {
	for range maxRounds {
		if c.source.git {
			c.network = networkOf(c.Root, c.source.dir)
			c.use(c.network)
		}
		before, err := fixedFiles(c.source.dir)
		if err != nil {
			return err
		}
		if c.state, err = scan(c.source); err != nil {
			return err
		}
		for _, r := range c.records { // of the round before
			if !r.Mode.IsDir() {
				_ = os.Remove(filepath.Join(c.to, r.Name))
			}
		}
		c.records, c.damage = nil, nil
		for _, e := range c.state.entries {
			if err := c.copyEntry(ctx, e); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		now, err := scan(c.source)
		if err != nil {
			return err
		}
		isSame := now.changes == c.state.changes || isState(c.source.place) && now.continues(c.state)
		if !isSame || c.source.git && networkOf(c.Root, c.source.dir) != c.network {
			continue
		}
		if c.source.only != nil {
			return nil
		}
		isWhole, err := c.copyFixed(ctx, before)
		if isWhole || err != nil {
			return err
		}
	}
	return fault.New(fault.Unavailable, "it changes faster than it can be copied: run the command again")
}

// copyEntry copies a directory, a link or a changing file.
func (c *copier) copyEntry(ctx context.Context, e entry) error {
	from, to := filepath.Join(c.source.dir, e.name), filepath.Join(c.to, e.name)
	r, dir := record{Name: e.name, Mode: e.mode}, to
	if !e.mode.IsDir() {
		dir = filepath.Dir(to)
	}
	err := os.MkdirAll(dir, 0o700)
	switch {
	case err != nil || e.mode.IsDir():
	case e.mode.Type() == fs.ModeSymlink:
		if r.Target, err = os.Readlink(from); err == nil {
			err = os.Symlink(r.Target, to)
		}
	default:
		var f *os.File
		if f, err = disk.Open(from); err == nil {
			defer f.Close()
			has := c.has[e.name]
			if isState(c.source.place) && has.time == e.id.Mtime && isCopy(f, e.id.Size, has.path) &&
				os.Link(has.path, to) == nil {
				r.Time, r.Sum = has.time, has.sum
			} else {
				r, err = c.copyFile(ctx, f, e.name)
			}
		}
	}
	if err == nil {
		c.records = append(c.records, r)
	}
	return err
}

// copyFixed copies the fixed files that the copy lacks. It reports whether they are complete for the state: before has
// the files that were there before it.
func (c *copier) copyFixed(ctx context.Context, before []string) (isWhole bool, err error) {
	names, err := fixedFiles(c.source.dir)
	if err != nil {
		return false, err
	}
	there := make(map[string]bool, len(names))
	for _, name := range names {
		there[name] = true
		if _, ok := c.done[name]; !ok {
			if err := c.take(ctx, name); errors.Is(err, fs.ErrNotExist) {
				return false, nil
			} else if err != nil {
				return false, err
			}
		}
	}
	if lacks(names, before) {
		if now, err := scan(c.source); err != nil || now.changes != c.state.changes {
			return false, nil
		}
	}
	for name := range c.done {
		if !there[name] { // of a round before
			if err := os.Remove(filepath.Join(c.to, name)); err != nil {
				return false, err
			}
		}
	}
	for _, name := range names {
		c.records = append(c.records, c.done[name])
	}
	return true, nil
}

// take links a fixed file that the backup has, or copies it. The error is fs.ErrNotExist if it was removed.
func (c *copier) take(ctx context.Context, name string) error {
	f, err := disk.Open(filepath.Join(c.source.dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	to := filepath.Join(c.to, name)
	if err := cmp.Or(unix.Fstat(int(f.Fd()), &st), os.MkdirAll(filepath.Dir(to), 0o700)); err != nil {
		return err
	}
	candidates, isShared := []stored{c.has[name]}, st.Nlink > 1 || c.isContinued
	if isShared {
		shared := c.shared()
		c.mu.Lock()
		candidates = append(candidates, shared[filepath.Base(name)])
		c.mu.Unlock()
	}
	for _, has := range candidates {
		if has.path == "" || !isCopy(f, st.Size, has.path) || os.Link(has.path, to) != nil {
			continue
		}
		var err error
		if has.sum == "" {
			has.sum, err = checkFile(ctx, to, name)
		}
		if err == nil {
			c.done[name] = record{Name: name, Mode: fs.FileMode(st.Mode & 0o777), Time: st.Mtim.Nano(), Sum: has.sum}
			return nil
		}
		if err := os.Remove(to); err != nil { // a damaged copy
			return err
		}
	}
	r, err := c.copyFile(ctx, f, name)
	if err != nil {
		return err
	}
	if isShared {
		c.mu.Lock()
		c.shared()[filepath.Base(name)] = stored{path: to, sum: r.Sum}
		c.mu.Unlock()
	}
	c.done[name] = r
	return nil
}

// sharedFiles returns the fixed files in the units of the backup before and of an interrupted one, by the last part of
// their name.
func (b *run) sharedFiles() map[string]stored {
	files := map[string]stored{}
	begun, _ := filepath.Glob(filepath.Join(b.Dir, newName, "*"))
	for _, dir := range begun {
		names, _ := fixedFiles(dir)
		for _, name := range names {
			files[filepath.Base(name)] = stored{path: filepath.Join(dir, name)}
		}
	}
	for place, u := range b.was.Units {
		dir := filepath.Join(b.Dir, place)
		records, _ := readRecords(dir, u.List)
		if exists(filepath.Join(dir, badName)) {
			continue
		}
		for _, r := range records {
			if isFixedDir(filepath.Dir(r.Name)) {
				files[filepath.Base(r.Name)] = stored{path: filepath.Join(dir, r.Name), sum: r.Sum}
			}
		}
	}
	return files
}

// isCopy reports whether a file has the size and the last bytes of an open one. Fixed files with the same name are then
// equal: packs and their files end in a checksum.
func isCopy(f *os.File, size int64, path string) bool {
	other, err := os.Open(path)
	if err != nil {
		return false
	}
	defer other.Close()
	info, err := other.Stat()
	if err != nil || info.Size() != size {
		return false
	}
	var a, b [32]byte
	from := max(0, size-int64(len(a)))
	n, _ := f.ReadAt(a[:], from)
	m, _ := other.ReadAt(b[:], from)
	return n == m && a == b
}

// copyFile copies an open file into the unit. Damage is noted.
func (c *copier) copyFile(ctx context.Context, f *os.File, name string) (r record, err error) {
	info, err := f.Stat()
	if err != nil {
		return r, err
	}
	r = record{Name: name, Mode: info.Mode().Perm(), Time: info.ModTime().UnixNano()}
	to, err := os.OpenFile(filepath.Join(c.to, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return r, err
	}
	defer to.Close()
	var size int64
	var damage error
	if r.Sum, size, damage, err = read(ctx, f, to, name); err != nil {
		return r, err
	}
	c.report.count(size)
	if damage != nil && c.damage == nil {
		c.damage = damage
	}
	return r, errors.Join(to.Chmod(r.Mode|0o600), to.Close(), os.Chtimes(to.Name(), time.Time{}, info.ModTime()))
}

// checkFile returns the SHA-256 of a file of a unit, or an error if its content does not belong to its name.
func checkFile(ctx context.Context, path, name string) (sum string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum, _, damage, err := read(ctx, f, io.Discard, name)
	return sum, errors.Join(damage, err)
}

// read copies a file to w, and returns its SHA-256. damage is set if the name of a fixed file and its content do not
// belong together. A pack and the files of a pack end in a checksum (gitformat-pack(5)). Other fixed files have the
// checksum of their content as their name.
func read(ctx context.Context, f *os.File, w io.Writer, name string) (sum string, size int64, damage, err error) {
	info, err := f.Stat()
	if err != nil {
		return "", 0, nil, err
	}
	all, own, tail := sha256.New(), formatOf(name), 0
	if strings.HasPrefix(name, "objects/pack/") && slices.Contains(fixedOrder[2:], filepath.Ext(name)) {
		tail = own.Size()
	}
	block, held := make([]byte, min(info.Size()+1, 256<<10)+int64(own.Size())), 0 // held bytes may be the checksum
	for {
		n, err := f.Read(block[held:])
		if _, err := w.Write(block[held : held+n]); err != nil {
			return "", size, nil, err
		}
		all.Write(block[held : held+n])
		size += int64(n)
		body := max(0, held+n-tail)
		own.Write(block[:body])
		held = copy(block, block[body:held+n])
		if err == io.EOF {
			break
		}
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return "", size, nil, err
		}
	}
	sum = hex.EncodeToString(all.Sum(nil))
	isGood := true
	switch base := filepath.Base(name); {
	case tail > 0:
		isGood = bytes.Equal(own.Sum(nil), block[:held])
	case strings.HasPrefix(name, "lfs/objects/"):
		isGood = sum == base
	case isFixedDir(filepath.Dir(name)) && !strings.HasPrefix(name, "objects/pack/"):
		isGood = isLoose(f, filepath.Base(filepath.Dir(name))+base)
	}
	if !isGood {
		damage = fault.New(fault.Corrupt, "%s is damaged: its checksum is wrong", name)
	}
	return sum, size, damage, nil
}

// formatOf returns the hash of a repository's object format, by the length of the name of a file of objects.
func formatOf(name string) hash.Hash {
	digits := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(name), filepath.Ext(name)), "pack-")
	if len(digits) > 60 {
		return sha256.New()
	}
	return sha1.New()
}

// isLoose reports whether a file is the loose object with an ID (gitformat-loose(5)).
func isLoose(f *os.File, id string) bool {
	h := formatOf(id)
	z, err := zlib.NewReader(io.NewSectionReader(f, 0, 1<<62))
	if err == nil {
		_, err = io.Copy(h, z)
	}
	return err == nil && hex.EncodeToString(h.Sum(nil)) == id
}

// writeList writes the list of the unit, and returns its SHA-256.
func (c *copier) writeList() (sum string, err error) {
	if err := os.MkdirAll(c.to, 0o700); err != nil {
		return "", err
	}
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	err = out.Encode(list{c.id})
	for _, r := range c.records {
		err = errors.Join(err, out.Encode(r))
	}
	hash := sha256.Sum256(text.Bytes())
	return hex.EncodeToString(hash[:]), errors.Join(err, os.WriteFile(filepath.Join(c.to, listName), text.Bytes(), 0o600))
}
