package inspect

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/git"
)

// patchReader reads the output of git diff-tree -z --raw -p: the raw records, each with its paths behind it, a NUL, and
// the patches in the same order (git-diff(1)). A file whose differences are ignored has a record without a patch, and a
// file that changes its type has two patches.
//
// The content of files cannot be mistaken for a header, because the header of a hunk has the number of its lines.
type patchReader struct {
	q    *PatchRequest
	send func(*File) error
	in   *bufio.Reader
	sum  Summary

	files          []*File // up to the limit; nil: sent
	names          int     // bytes of their paths
	added, deleted int64   // records with these states, also beyond the limit

	current  *File // whose patch is read; nil: none yet
	limit    int64 // bytes of its patch
	bytes    int64 // of the patches that were sent
	full     bool  // the limit of all patches has cut one
	old, new int   // remaining lines of the hunk on each side
}

// maxNames is the maximum size of all paths in bytes; more count as too many files.
const maxNames = 64 << 20

func (p *patchReader) read(out io.Reader) error {
	p.in = bufio.NewReaderSize(out, piece)
	for {
		switch mark, err := p.in.ReadByte(); {
		case err == io.EOF || err == nil && mark == 0:
			p.sum.RenameLimit = !p.q.NoRenames && p.added*p.deleted > renameLimit*renameLimit
			if err == nil {
				err = p.patches()
			} else {
				err = p.skipTo(len(p.files))
			}
			return err
		case err != nil:
			return err
		case mark != ':':
			return errOutput("diff-tree", "%q where a record should be", mark)
		}
		if err := p.record(); err != nil {
			return err
		}
	}
}

// record reads ":MODE MODE ID ID STATUS NUL PATH NUL" after the colon; renames have two paths.
func (p *patchReader) record() error {
	text, err := p.field()
	if err != nil {
		return err
	}
	fields := bytes.Fields(text)
	if len(fields) != 5 {
		return errOutput("diff-tree", "record %.200q", text)
	}
	f := &File{Status: fields[4][0]}
	var bad [4]error
	f.OldMode, bad[0] = octal(fields[0])
	f.Mode, bad[1] = octal(fields[1])
	f.OldID, bad[2] = git.ParseObjectID(fields[2])
	f.ID, bad[3] = git.ParseObjectID(fields[3])
	if err := errors.Join(bad[:]...); err != nil {
		return errOutput("diff-tree", "record %.200q", text)
	}
	f.Similarity, _ = strconv.Atoi(string(fields[4][1:])) // only some have it
	if f.Path, err = p.field(); err != nil {
		return err
	}
	f.OldPath = f.Path
	switch f.Status {
	case 'R', 'C':
		if f.Path, err = p.field(); err != nil {
			return err
		}
	case 'A':
		p.added++
	case 'D':
		p.deleted++
	}
	if p.names += len(f.Path); len(p.files) == p.q.MaxFiles || p.names > maxNames {
		p.sum.Truncated = true
		return nil
	}
	p.files = append(p.files, f)
	return nil
}

func octal(text []byte) (uint32, error) {
	n, err := strconv.ParseUint(string(text), 8, 32)
	return uint32(n), err
}

// field reads up to a NUL.
func (p *patchReader) field() ([]byte, error) {
	text, err := p.in.ReadBytes(0)
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	return bytes.TrimSuffix(text, []byte{0}), err
}

// patches reads the patches.
func (p *patchReader) patches() error {
	for whole := true; ; {
		line, err := p.in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			if err == io.EOF && len(line) == 0 {
				return p.skipTo(len(p.files))
			}
			return err
		}
		if whole {
			if err := p.line(line); err != nil {
				return err
			}
		}
		p.add(line, whole)
		whole = err == nil
	}
}

// line reads the beginning of a line.
func (p *patchReader) line(line []byte) error {
	if p.old > 0 || p.new > 0 {
		switch line[0] {
		case ' ':
			p.old--
			p.new--
		case '-':
			p.old--
			p.current.Deletions++
		case '+':
			p.new--
			p.current.Additions++
		case '\\': // no newline at the end of the file
		default:
			return errOutput("diff-tree", "%.80q in a hunk", line)
		}
		return nil
	}
	switch {
	case bytes.HasPrefix(line, []byte("diff --git ")):
		return p.begin(line)
	case p.current == nil:
		return errOutput("diff-tree", "%.80q before the first patch", line)
	case bytes.HasPrefix(line, []byte("@@ ")):
		return p.hunk(line)
	case bytes.HasPrefix(line, []byte("Binary files ")):
		p.current.Binary = true
	}
	return nil
}

// hunk reads "@@ -LINE[,COUNT] +LINE[,COUNT] @@".
func (p *patchReader) hunk(line []byte) error {
	fields := bytes.SplitN(line, []byte(" "), 4)
	count := func(text []byte) (n int, err error) {
		_, after, ok := bytes.Cut(text, []byte(","))
		if !ok {
			return 1, nil
		}
		return strconv.Atoi(string(after))
	}
	var err error
	if len(fields) == 4 {
		if p.old, err = count(fields[1]); err == nil {
			p.new, err = count(fields[2])
		}
	}
	if len(fields) != 4 || err != nil {
		return errOutput("diff-tree", "hunk %.200q", line)
	}
	return nil
}

// begin begins the patch with a header: that of the next file which has this header.
func (p *patchReader) begin(line []byte) error {
	if p.current != nil && p.current.Status == 'T' && p.current.hasHeader(line) {
		return nil
	}
	next := p.sum.Files
	if p.current != nil {
		next++
	}
	for ; next < len(p.files); next++ {
		if p.files[next].hasHeader(line) {
			if err := p.skipTo(next); err != nil {
				return err
			}
			if p.full || p.bytes >= p.q.MaxBytes {
				p.sum.Truncated = true
				return errEnough
			}
			p.current, p.limit = p.files[next], min(int64(p.q.MaxFileBytes), p.q.MaxBytes-p.bytes)
			return nil
		}
	}
	if p.sum.Truncated { // of a file beyond the limit
		if err := p.skipTo(len(p.files)); err != nil {
			return err
		}
		return errEnough
	}
	return errOutput("diff-tree", "unexpected patch %.200q", line)
}

// hasHeader reports whether the patch of the file begins with a line, which may be cut.
func (f *File) hasHeader(line []byte) bool {
	header := fmt.Appendf(nil, "diff --git %s %s\n", quote("a/", f.OldPath), quote("b/", f.Path))
	return bytes.HasPrefix(header, line)
}

// add adds a part of a line to the patch.
func (p *patchReader) add(line []byte, isBegin bool) {
	f := p.current
	switch {
	case f.Truncated:
	case int64(len(f.Patch)+len(line)) <= p.limit:
		f.Patch = append(f.Patch, line...)
	default:
		f.Truncated, p.full = true, p.limit < int64(p.q.MaxFileBytes)
		if !isBegin {
			f.Patch = f.Patch[:bytes.LastIndexByte(f.Patch, '\n')+1]
		}
	}
}

// skipTo sends the files before the one with an index.
func (p *patchReader) skipTo(end int) error {
	for ; p.sum.Files < end; p.sum.Files++ {
		f := p.files[p.sum.Files]
		p.files[p.sum.Files] = nil
		p.bytes += int64(len(f.Patch))
		p.sum.Additions += int64(f.Additions)
		p.sum.Deletions += int64(f.Deletions)
		if err := p.send(f); err != nil {
			return err
		}
	}
	p.current = nil
	return nil
}
