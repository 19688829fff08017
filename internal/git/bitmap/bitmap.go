// Package bitmap reads reachability bitmaps: the objects that a commit reaches, as git stored them beside a pack
// (pack-X.bitmap) or a multi-pack-index (multi-pack-index-SUM.bitmap). No process is started, nothing is written.
//
// The format is version 1 of gitformat-bitmap(5). A file has four bitmaps of the objects of each type, then bitmaps of
// selected commits, then extensions. Each is compressed (EWAH) and may be the difference (XOR) from an earlier one. Bit
// i is the object at rank i by offset in the pack. In a multi-pack-index the preferred pack comes first, and the others
// follow in the order of their numbers (gitformat-pack(5), "multi-pack-index reverse indexes").
//
// A wrong bit would leave an object out of a pack. So Open compares the checksums of the files from which bits and
// places are taken. That reads each once, so a caller opens a bitmap for work on many objects, and keeps it. An open
// Bitmap takes about 100 bytes of memory for each commit that has a bitmap, and at most maxCommits are accepted. The
// rest is mapped. The extensions are skipped: the name-hash cache and the pseudo-merges because no caller needs them,
// and the lookup table because finding all commits is cheap after the checksum.
package bitmap

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// maxCommits is the maximum number of commits with a bitmap in a file. Git selects one of 100 to 5,000 commits.
const maxCommits = 1 << 18

// errNoBitmap means that no bitmap exists. It is fs.ErrNotExist, by errors.Is.
var errNoBitmap = fmt.Errorf("no reachability bitmap: %w", fs.ErrNotExist)

// Bitmap is an open bitmap file. It is immutable and safe for concurrent use. Its files are unmapped when it is
// collected. It stays usable after git has removed them.
type Bitmap struct {
	file    *disk.Mapping
	index   *index
	layout  *layout
	commits map[git.ObjectID]int32 // commits with a bitmap: positions in layout.entries
	scratch sync.Pool              // of *[]uint64, Words long
}

// Open opens the bitmap that git would use in a pack directory: that of the multi-pack-index, or else that of the
// newest pack with one. The error is fs.ErrNotExist, by errors.Is, if no bitmap exists. If the bitmap is damaged
// or of an unknown kind, the error is of kind fault.Corrupt and has the path.
func Open(ctx context.Context, dir string, format git.ObjectFormat) (*Bitmap, error) {
	b, err := openMulti(ctx, dir, format)
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var newest string
	var newestTime time.Time
	for _, name := range names {
		base, ok := strings.CutSuffix(name.Name(), ".bitmap")
		if !ok || !strings.HasPrefix(base, "pack-") {
			continue
		}
		base = filepath.Join(dir, base)
		info, err := os.Stat(base + ".pack")
		if err == nil && (newest == "" || info.ModTime().After(newestTime)) {
			newest, newestTime = base, info.ModTime()
		}
	}
	if newest == "" {
		return nil, errNoBitmap
	}
	return openPack(ctx, newest, format)
}

// openPack opens the bitmap of one pack. base is the pack's path without ".pack". Errors are as those of Open.
func openPack(ctx context.Context, base string, format git.ObjectFormat) (*Bitmap, error) {
	file, err := disk.MapFile(base + ".bitmap") // first: most packs have none
	if err != nil {
		return nil, err
	}
	x, err := openIdx(base, format)
	if err != nil {
		return nil, err
	}
	return open(ctx, file, x, format)
}

// openMulti opens the bitmap of the multi-pack-index in a pack directory. Errors are as those of Open.
func openMulti(ctx context.Context, dir string, format git.ObjectFormat) (*Bitmap, error) {
	x, err := openMidx(dir, format)
	if err != nil {
		return nil, err
	}
	file, err := disk.MapFile(x.path + "-" + hex.EncodeToString(x.sum) + ".bitmap")
	if err != nil {
		return nil, err
	}
	if err := verify(ctx, x.multi.File(), format); err != nil {
		return nil, err
	}
	return open(ctx, file, x, format)
}

func open(ctx context.Context, file *disk.Mapping, x *index, format git.ObjectFormat) (*Bitmap, error) {
	if err := verify(ctx, file, format); err != nil {
		return nil, err
	}
	b := &Bitmap{file: file, index: x}
	err := file.Do(func(data []byte) (err error) {
		b.layout, err = parse(data, x.count, x.sum)
		return err
	})
	if err != nil {
		return nil, damaged(file.Name(), err)
	}
	if b.commits, err = x.name(b.layout.entries); err != nil {
		return nil, damaged(file.Name(), err)
	}
	b.scratch.New = func() any {
		words := make([]uint64, b.Words())
		return &words
	}
	return b, nil
}

// damaged returns an error of kind fault.Corrupt. The path and the cause are for the log only.
func damaged(path string, err error) error {
	return fault.Wrap(fault.Corrupt, "a reachability bitmap of the repository is damaged", fmt.Errorf("%s: %w", path, err))
}

// verify compares the checksum at the end of a file with its content.
func verify(ctx context.Context, file *disk.Mapping, format git.ObjectFormat) error {
	const piece = 4 << 20
	sum, end := format.New(), file.Len()-format.Size()
	for at := 0; at < end; at += piece {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := file.Do(func(data []byte) error {
			sum.Write(data[at:min(at+piece, end)])
			return nil
		})
		if err != nil {
			return err
		}
	}
	return file.Do(func(data []byte) error {
		if end < 0 || !bytes.Equal(sum.Sum(nil), data[end:]) {
			return damaged(file.Name(), errors.New("the checksum of the file is wrong"))
		}
		return nil
	})
}

// Len is the number of bits: of objects in the pack or the multi-pack-index.
func (b *Bitmap) Len() int { return b.index.count }

// Words is the length that the sets of Or, OrType and Objects have.
func (b *Bitmap) Words() int { return words(b.index.count) }

// IsMulti reports whether this is the bitmap of a multi-pack-index.
func (b *Bitmap) IsMulti() bool { return b.index.multi != nil }

// Packs is the file names of the packs, without extension: one, or all of the multi-pack-index. Do not change it.
func (b *Bitmap) Packs() []string { return b.index.packs }

// Or adds to set the commit and all objects that it reaches. It returns false, and leaves set alone, if the commit has
// no bitmap. It does not allocate. It takes time in proportion to Len, and to the length of the chain of differences
// whose result is the bitmap. So call it only for a commit that is not in set yet. After an error, which is of kind
// fault.Corrupt, set is as before.
func (b *Bitmap) Or(commit git.ObjectID, set []uint64) (bool, error) {
	i, ok := b.commits[commit]
	if !ok {
		return false, nil
	}
	return true, b.or(set, func(data []byte, to []uint64) error { return b.layout.xorCommit(data, int(i), to) })
}

// OrType adds to set all objects of a type, as Or does. The types have no bit in common, and together all bits.
func (b *Bitmap) OrType(t git.ObjectType, set []uint64) error {
	return b.or(set, func(data []byte, to []uint64) error { return b.layout.xorType(data, t, to) })
}

// or adds to set the bits that xor sets in an empty one.
func (b *Bitmap) or(set []uint64, xor func(data []byte, to []uint64) error) error {
	set = set[:b.Words()]
	scratch := b.scratch.Get().(*[]uint64)
	defer b.scratch.Put(scratch)
	result := *scratch
	clear(result)
	if err := b.file.Do(func(data []byte) error { return xor(data, result) }); err != nil {
		return damaged(b.file.Name(), err)
	}
	if extra := b.Len() % 64; extra != 0 && result[len(result)-1]>>extra != 0 {
		return damaged(b.file.Name(), errors.New("a bitmap has bits beyond the last object"))
	}
	for i, w := range result {
		set[i] |= w
	}
	return nil
}

// Objects calls fn for each bit of set with the bit and the place of the object: its pack's position in Packs, and its
// offset there. The calls are in the order of bits: pack by pack, in each by rising offset. It is for the bitmap of a
// multi-pack-index only. In that of a pack, bit i is the entry at rank i by offset. If fn returns an error, Objects
// stops and returns it.
func (b *Bitmap) Objects(set []uint64, fn func(bit, pack int, offset int64) error) error {
	return b.index.objects(set[:b.Words()], fn)
}

// Has reports whether set has the bit of an object, which is named by its raw ID. It does not allocate.
func (b *Bitmap) Has(set []uint64, raw []byte) bool {
	bit, ok := b.index.bit(raw)
	return ok && set[bit/64]&(1<<(bit%64)) != 0
}
