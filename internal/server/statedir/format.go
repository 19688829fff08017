package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// Format is the format of state directories, as this version writes them. It increases when an older version would
// misread one of the files.
const Format = 1

// formatName is the name of the file with the Formatted.
const formatName = "format.json"

// Formatted describes the program that has written a state directory.
type Formatted struct {
	Format  int    `json:"format"`
	Version string `json:"version,omitempty"` // of the latest program; empty: before 0.1.0
}

// ReadFormat returns the format of a state directory. Callers that use the directory without Open check it first. The
// error is Invalid if only a newer version can use it.
func ReadFormat(dir string) (f Formatted, err error) {
	path := filepath.Join(dir, formatName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Formatted{Format: 1}, nil
	}
	if err != nil {
		return f, fmt.Errorf("read the format of the state directory: %w", err)
	}
	err = json.Unmarshal(text, &f)
	switch {
	case err != nil || f.Format < 1:
		return f, fmt.Errorf("the format of the state directory is damaged: %s: %.80q; remove it if no newer version has "+
			"used the directory", path, text)
	case f.Format > Format:
		return f, fault.New(fault.Invalid, "the state directory %s has format %d of packhorse %s, and this version knows "+
			"formats up to %d: use that version, or restore the state from a backup", dir, f.Format, f.Version, Format)
	}
	return f, nil
}

// claimFormat checks the format of a state directory, and records that this version uses it.
func claimFormat(dir string) error {
	was, err := ReadFormat(dir)
	now := Formatted{Format, cli.Version}
	if err != nil || was == now {
		return err
	}
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	return disk.ReplaceFile(filepath.Join(dir, formatName), append(text, '\n'))
}
