package search

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// catalogue assigns numbers to repositories, by which shards and searches identify them. A number is never used twice,
// because the shards of a repository must not be read as another one's. The file has a line for each number. Before
// numbers are used, a line reserves them. If a line is lost, its repository is indexed again. After each job a line has
// the seal of the repository's shards on disk. Shards with another seal, for example after a power failure during their
// renaming, are not trusted.
type catalogue struct {
	path string

	mu       sync.Mutex
	file     *os.File
	next     uint32
	reserved uint32 // numbers below it may be assigned
	torn     bool   // the last line may be incomplete
	known    map[uint32]entry
	lines    int
}

// entry is a line of the catalogue.
type entry struct {
	ID          uint32 `json:"id,omitempty"`
	Repository  string `json:"repository,omitempty"`
	Incarnation string `json:"incarnation,omitempty"`
	Seal        string `json:"seal,omitempty"` // of its shards; see sealOf
	NamesOnly   int    `json:"names_only,omitempty"`
	Gone        bool   `json:"gone,omitempty"`
	Next        uint32 `json:"next,omitempty"`
}

const (
	// reserve is how many numbers are reserved at once.
	reserve = 1000
	// maxNumber is the largest number that is accepted from a catalogue.
	maxNumber = 1 << 31
	// maxLine is the maximum length of a line in bytes.
	maxLine = 64 << 10
	// maxLines is the number of lines, besides four for each repository, after which the file is rewritten.
	maxLines = 10_000
)

// readLines yields the lines of a file, except for those that are too long.
func readLines(r io.Reader, each func([]byte)) error {
	lines := bufio.NewReaderSize(r, maxLine)
	for whole := true; ; {
		line, err := lines.ReadSlice('\n')
		if err != nil && err != io.EOF && err != bufio.ErrBufferFull {
			return err
		}
		if whole && err != bufio.ErrBufferFull && len(line) > 0 {
			each(line)
		}
		if err == io.EOF {
			return nil
		}
		whole = err == nil
	}
}

// openCatalogue reads the catalogue in a directory and rewrites it without removed repositories.
func openCatalogue(dir string) (*catalogue, map[uint32]entry, error) {
	known := map[uint32]entry{}
	c := &catalogue{path: filepath.Join(dir, "catalogue"), next: 1, known: known}
	f, err := os.Open(c.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, nil, err
	default:
		err = readLines(f, func(line []byte) {
			var e entry
			if json.Unmarshal(line, &e) != nil || e.ID > maxNumber || e.Next > maxNumber {
				return // incomplete after a crash, or not a line of a catalogue: its repository is indexed again
			}
			c.next = max(c.next, e.Next, e.ID+1)
			if e.Gone {
				delete(known, e.ID)
			} else if e.ID != 0 {
				known[e.ID] = e
			}
		})
		f.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("reading the catalogue of the index: %w", err)
		}
	}
	if err := c.rewrite(); err != nil {
		return nil, nil, err
	}
	return c, maps.Clone(known), nil
}

// rewrite replaces the file by one without removed repositories.
func (c *catalogue) rewrite() error {
	f, err := os.OpenFile(c.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	encoder := json.NewEncoder(w)
	reserved := c.next + reserve
	encoder.Encode(entry{Next: reserved})
	for _, e := range c.known {
		encoder.Encode(e)
	}
	for _, step := range []func() error{
		w.Flush, f.Sync, func() error { return os.Rename(c.path+".new", c.path) },
		func() error { return disk.SyncDir(filepath.Dir(c.path)) },
	} {
		if err := step(); err != nil { // before the renaming, the old file remains
			f.Close()
			return err
		}
	}
	if c.file != nil {
		c.file.Close()
	}
	c.file, c.reserved, c.torn, c.lines = f, reserved, false, len(c.known)
	return nil
}

// add assigns a number to a repository.
func (c *catalogue) add(path git.RepoPath, incarnation string) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next >= c.reserved {
		if err := errors.Join(c.write(entry{Next: c.next + reserve}), c.file.Sync()); err != nil {
			return 0, err
		}
		c.reserved = c.next + reserve
	}
	e := entry{ID: c.next, Repository: path.String(), Incarnation: incarnation}
	if err := c.write(e); err != nil {
		return 0, err
	}
	c.next++
	c.known[e.ID] = e
	return e.ID, nil
}

// seal records the seal of a repository's shards.
func (c *catalogue) seal(id uint32, seal string, namesOnly int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, there := c.known[id]
	if !there || e.Seal == seal {
		return nil // removed meanwhile
	}
	e.Seal, e.NamesOnly = seal, namesOnly
	if err := c.write(e); err != nil {
		return err
	}
	c.known[id] = e
	return nil
}

// remove records that a number is no longer in use.
func (c *catalogue) remove(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, id)
	return c.write(entry{ID: id, Gone: true})
}

func (c *catalogue) write(e entry) error {
	if c.lines > maxLines+4*len(c.known) {
		if err := c.rewrite(); err != nil {
			return err
		}
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if c.torn {
		b = append([]byte{'\n'}, b...)
	}
	_, err = c.file.Write(b)
	c.torn = err != nil
	c.lines++
	return err
}

func (c *catalogue) close() error { return c.file.Close() }
