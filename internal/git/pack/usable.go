package pack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
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
		err := check(packDir+base, s.format)
		if id, gone := disk.Stat(packDir + e.Name()); err != nil && gone == nil && id != (disk.ID{}) { // not replaced
			faults = append(faults, fmt.Errorf("%s.pack: %w", base, err))
		}
	}
	return faults, nil
}

// check compares the beginning and the end of a pack with those of its index (gitformat-pack(5)).
func check(base string, format git.ObjectFormat) error {
	x, err := openIdx(base+".idx", format)
	if err != nil {
		return err
	}
	o, err := (&packFile{path: base, hash: format.Size(), index: x}).openFile()
	if err == errGone {
		return errors.New("the pack is missing, and its index is there")
	}
	if err == nil {
		o.closeFile()
	}
	return err
}
