// Package archive makes archives of commits, as git archive does. The bytes depend only on the Spec: they are
// the same each time and on each node, whatever versions of git and zlib the nodes have.
//
// git archive writes a tar stream. It runs in an empty git directory with the objects of the repository
// (GIT_OBJECT_DIRECTORY). The attributes in the tree apply (export-ignore, export-subst, text). The configuration, refs
// and attributes of the repository do not: no filter and no tar.NAME.command is ever run. This process compresses the
// stream. A zip file has the entries of the tar stream.
//
// Where the output of git archive itself changes with time, this one does not. In placeholders of export-subst, %h has
// abbrev digits, no ref exists (%d, %(describe)), there is no .mailmap, and relative dates are relative to 1970. Large
// files are not converted (bigFile).
//
// An archive is a file of the pack cache. A client gets no byte before it is complete, so that its length and checksum
// are known.
package archive

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Class is the class of the git commands.
const Class process.Class = "archive"

// Formats of archives.
const (
	Tar  = "tar"
	Gzip = "tar.gz"
	Zstd = "tar.zst"
	Zip  = "zip"
)

// Formats lists the formats.
var Formats = []string{Tar, Gzip, Zstd, Zip}

// Limits of archives.
const (
	MaxTar   = 8<<30 - 1 // bytes of the tar stream
	maxPaths = 1000
	maxPath  = 4 << 10  // bytes of a path or a prefix
	maxText  = 64 << 10 // bytes of all paths together, which are arguments of a command
)

// Spec is everything that an archive depends on.
type Spec struct {
	Repo   packsource.Repository // Objects, Format, Incarnation and Hold
	Commit git.ObjectID
	Paths  []string // only these files and directories; nil: all
	Prefix string   // of each path
	Format string
	Caller balance.Caller // not part of the key
}

// Check returns an error of kind Invalid if a client's choices are not valid.
func Check(paths []string, prefix, format string) error {
	if len(paths) > maxPaths {
		return fault.InvalidField("paths", "more than %d paths", maxPaths)
	}
	total := 0
	for i, name := range paths {
		if total += len(name); total > maxText {
			return fault.InvalidField("paths", "more than %d bytes", maxText)
		}
		if err := checkName(name); err != nil {
			return fault.InField(fmt.Sprintf("paths[%d]", i), err)
		}
	}
	if prefix != "" {
		if err := checkName(prefix); err != nil {
			return fault.InField("prefix", err)
		}
	}
	if !slices.Contains(Formats, format) {
		return fault.InvalidField("format", "unknown format %.40q: want %s", format, strings.Join(Formats, ", "))
	}
	return nil
}

// checkName returns an error for a path that leads out of a directory, or that cannot be an argument.
func checkName(name string) error {
	path := strings.TrimSuffix(name, "/")
	if len(path) > maxPath || !fs.ValidPath(path) || path == "." || strings.ContainsFunc(path, unicode.IsControl) {
		return fault.New(fault.Invalid, "invalid path %.80q: want names with slashes between them, without . and .., of at "+
			"most %d bytes", name, maxPath)
	}
	return nil
}

// version is part of every key. Raise it when the archive for the same Spec changes.
const version = "packhorse archive 1\n"

// key returns the key of the archive.
func (s *Spec) key() (k packsource.Key) {
	h := sha256.New()
	fmt.Fprintf(h, "%s%q %s %q %q %q", version, s.Repo.Incarnation, s.Commit, s.Prefix, s.Format, s.Paths)
	h.Sum(k[:0])
	return k
}

// Maker makes archives. It is safe for concurrent use.
type Maker struct {
	Runner *process.Runner                      // with slots of Class
	GitDir func(format git.ObjectFormat) string // returns an empty git directory
	Cache  *packcache.Cache                     // nil: archives are temporary files
	Temp   string                               // directory of temporary files
}

// Opened is a complete archive. The caller closes it.
type Opened struct {
	File   *os.File // to be read at offsets
	Size   int64    // of the archive, at the beginning of the file
	SHA256 [sha256.Size]byte
	Result packsource.Result
	close  func() error
}

// Close ends the use of the archive.
func (o *Opened) Close() error { return o.close() }

// Open returns an archive, and makes it first if necessary. Callers that want the same archive at the same time share
// one making. The error is NotFound for a path that does not exist, Invalid above MaxTar, Full if there is no room,
// Exhausted if too many archives are made, or Deadline.
func (m *Maker) Open(ctx context.Context, s *Spec) (*Opened, error) {
	if m.Cache == nil {
		return m.temporary(ctx, s)
	}
	f, err := m.Cache.OpenFile(ctx, s.key(), s.Repo.Incarnation,
		func(ctx context.Context, w io.Writer) error { return m.write(ctx, s, w) })
	if err != nil {
		return nil, err
	}
	return open(&Opened{File: f.File, Size: f.Size, Result: f.Result, close: f.Close})
}

// temporary makes an archive for one caller.
func (m *Maker) temporary(ctx context.Context, s *Spec) (*Opened, error) {
	f, err := os.CreateTemp(m.Temp, "archive-*")
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot write to the state directory", err)
	}
	_ = os.Remove(f.Name()) // it exists as long as it is open
	if err := m.write(ctx, s, f); err != nil {
		f.Close()
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return open(&Opened{File: f, Size: info.Size(), Result: packsource.Uncached, close: f.Close})
}

// open reads the checksum at the end of a file that write has written.
func open(o *Opened) (*Opened, error) {
	o.Size -= int64(len(o.SHA256))
	if _, err := o.File.ReadAt(o.SHA256[:], o.Size); err != nil {
		o.Close()
		return nil, fault.Wrap(fault.Unavailable, "cannot read the archive", err)
	}
	return o, nil
}

// writeSize is the maximum number of bytes of one write to the file.
const writeSize = 256 << 10

// write writes the archive, and its SHA-256 after it.
func (m *Maker) write(ctx context.Context, s *Spec, w io.Writer) error {
	out := bufio.NewWriterSize(w, writeSize)
	sum := sha256.New()
	if err := m.encode(ctx, s, io.MultiWriter(out, sum)); err != nil {
		return err
	}
	_, _ = out.Write(sum.Sum(nil)) // Flush returns the error
	return out.Flush()
}
