package pack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Unusable returns the packs of the object directory that Git does not open, each with the reason. It makes the checks
// of Git's open_packed_git_1 and load_idx, with a few small reads for each pack, and reads no objects.
func (s *Store) Unusable(ctx context.Context) (faults []error, err error) {
	packDir := s.dir + "/pack/"
	entries, err := os.ReadDir(packDir)
	if err != nil && !isAbsent(err) {
		return nil, err
	}
	for _, e := range entries {
		base, isIndex := strings.CutSuffix(e.Name(), ".idx")
		if !isIndex || !strings.HasPrefix(base, "pack-") {
			continue
		}
		if err := ctx.Err(); err != nil {
			return faults, err
		}
		err := checkEnds(packDir+base, s.format.Size())
		if id, gone := disk.Stat(packDir + e.Name()); err != nil && gone == nil && id != (disk.ID{}) { // not replaced
			faults = append(faults, fmt.Errorf("%s.pack: %w", base, err))
		}
	}
	return faults, nil
}

// checkEnds compares the beginning and the end of a pack with those of its index (gitformat-pack(5)).
func checkEnds(base string, hash int) error {
	head, end, _, err := readEnds(base+".pack", packHeader, hash)
	if isAbsent(err) {
		return errors.New("the pack is missing, and its index is there")
	} else if err != nil {
		return err
	}
	table, sums, size, err := readEnds(base+".idx", 8+256*4, 2*hash)
	if err != nil {
		return err
	}
	count, version := binary.BigEndian.Uint32(table[255*4:]), binary.BigEndian.Uint32(head[4:])
	entries := int64(count) * int64(hash+4)
	if string(table[:4]) == "\377tOc" {
		count = binary.BigEndian.Uint32(table[8+255*4:])
		entries = 8 + int64(count)*int64(hash+8)
	}
	switch {
	case string(head[:4]) != "PACK" || version != 2 && version != 3:
		return errors.New("not a pack")
	case size < 256*4+entries+int64(2*hash):
		return errors.New("its index is cut off")
	case binary.BigEndian.Uint32(head[8:]) != count:
		return errors.New("it does not have as many objects as its index")
	case !bytes.Equal(end, sums[:hash]):
		return errors.New("its end is not the one in its index: it is cut off, or another file")
	}
	return nil
}

// readEnds reads the first and the last bytes of a file.
func readEnds(path string, first, last int) (head, end []byte, size int64, err error) {
	f, err := disk.Open(path)
	if err != nil {
		return nil, nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, 0, err
	}
	if size = info.Size(); size < int64(first+last) {
		return nil, nil, size, errors.New("it is cut off")
	}
	head, end = make([]byte, first), make([]byte, last)
	if _, err = f.ReadAt(head, 0); err == nil {
		_, err = f.ReadAt(end, size-int64(last))
	}
	if err == io.EOF {
		err = nil
	}
	return head, end, size, err
}
