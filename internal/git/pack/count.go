package pack

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Counts is the output of git-count-objects(1) for an object directory, without its alternates.
type Counts struct {
	Packed    int64 // objects in packs; an object in several packs counts several times
	Packs     int64
	Loose     int64
	PackBytes int64 // of packs and their indexes

	MultiPackIndex, Bitmap, CommitGraph bool // they exist
}

// Add adds the counts of another directory.
func (c *Counts) Add(other Counts) {
	c.Packed, c.Packs, c.Loose, c.PackBytes = c.Packed+other.Packed, c.Packs+other.Packs, c.Loose+other.Loose,
		c.PackBytes+other.PackBytes
	c.MultiPackIndex, c.Bitmap = c.MultiPackIndex || other.MultiPackIndex, c.Bitmap || other.Bitmap
	c.CommitGraph = c.CommitGraph || other.CommitGraph
}

// Count counts the objects of the object directory. It makes a few small reads for each pack, and reads the names of
// all loose objects. It ends with ctx.
func (s *Store) Count(ctx context.Context) (Counts, error) {
	c, err := s.count(ctx)
	if err != nil && !errors.Is(err, ctx.Err()) {
		err = fault.Wrap(fault.Unavailable, "cannot count the repository's objects", err)
	}
	return c, err
}

func (s *Store) count(ctx context.Context) (c Counts, err error) {
	packDir := s.dir + "/pack"
	entries, err := os.ReadDir(packDir)
	if err != nil && !isAbsent(err) {
		return c, err
	}
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		there[e.Name()] = true
	}
	for _, e := range entries {
		base, isPack := strings.CutSuffix(e.Name(), ".pack")
		switch {
		case e.Name() == "multi-pack-index":
			c.MultiPackIndex = true
		case strings.HasSuffix(e.Name(), ".bitmap"):
			c.Bitmap = true
		case isPack && there[base+".idx"]:
			if err := ctx.Err(); err != nil {
				return c, err
			}
			if err := c.addPack(packDir + "/" + base); err != nil {
				return c, err
			}
		}
	}
	for _, name := range []string{"/info/commit-graph", "/info/commit-graphs/commit-graph-chain"} {
		id, err := disk.Stat(s.dir + name)
		if err != nil {
			return c, err
		}
		c.CommitGraph = c.CommitGraph || id != disk.ID{}
	}
	for i := range 256 {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		for _, err := range looseIn(s.dir, byte(i), s.format) {
			if err != nil {
				return c, err
			}
			c.Loose++
		}
	}
	return c, nil
}

// addPack counts one pack. A pack that is removed meanwhile does not count.
func (c *Counts) addPack(path string) error {
	f, err := disk.Open(path + ".pack")
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var header [packHeader]byte
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return nil // not a pack, as reading it will show
	}
	pack, err := f.Stat()
	if err != nil {
		return err
	}
	index, err := os.Stat(path + ".idx")
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.Packs++
	c.Packed += int64(binary.BigEndian.Uint32(header[8:]))
	c.PackBytes += pack.Size() + index.Size()
	return nil
}
