package inspect

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// patchReader reads the output of git diff-tree -z --raw -p: the raw records, each with its paths behind it, a NUL, and
// the patches in the same order (git-diff(1)). A file whose differences are ignored has a record without a patch, and a
// file that changes its type has two patches.
//
// The content of files cannot be mistaken for a header, because the header of a hunk has the number of its lines.
type patchReader struct {
	q    *packhorsev1.PatchRequest
	send func(*packhorsev1.PatchResponse) error
	in   *bufio.Reader
	sum  *packhorsev1.PatchSummary

	files          []*packhorsev1.FileDiff // that were not sent, up to the limit
	names          int                     // bytes of all paths
	added, deleted int64                   // records with these states, also beyond the limit

	isOpen   bool  // the patch of the first file is read
	left     int64 // bytes that the next patches may have
	old, new int   // remaining lines of the hunk on each side
}

// maxNames is the maximum size of all paths in bytes; more count as too many files.
const maxNames = 64 << 20

// errEnough ends a command whose further output is not needed.
var errEnough = errors.New("enough")

func (p *patchReader) read(out io.Reader) error {
	p.in = bufio.NewReaderSize(out, piece)
	for {
		text, err := p.in.ReadBytes(0)
		isEnd := err == io.EOF && len(text) == 0
		switch {
		case isEnd || err == nil && len(text) == 1:
			p.sum.RenameLimitReached = !p.q.GetNoRenames() && p.added*p.deleted > renameLimit*renameLimit
			if !isEnd {
				err = p.patches()
			}
			if err == io.EOF {
				err = p.flush(len(p.files))
			}
			return err
		case err == nil:
			err = p.record(text[:len(text)-1])
		}
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		} else if err != nil {
			return err
		}
	}
}

// rawRecord is a record before its paths.
var rawRecord = regexp.MustCompile(`^:([0-7]+) ([0-7]+) ([0-9a-f]+) ([0-9a-f]+) ([A-Z])([0-9]*)$`)

// record reads the paths of a record. Renames have two.
func (p *patchReader) record(text []byte) error {
	m := rawRecord.FindStringSubmatch(string(text))
	if m == nil {
		return errOutput("diff-tree", "record %.200q", text)
	}
	f := &packhorsev1.FileDiff{Status: m[5], OldMode: octal(m[1]), Mode: octal(m[2])}
	similarity, _ := strconv.Atoi(m[6]) // only some have it
	f.Similarity = int32(similarity)
	if f.OldMode != 0 {
		f.OldOid = m[3]
	}
	if f.Mode != 0 {
		f.Oid = m[4]
	}
	path, err := p.in.ReadBytes(0)
	f.OldPath = bytes.TrimSuffix(path, []byte{0})
	switch f.Path = f.OldPath; f.Status {
	case "R":
		if err == nil {
			path, err = p.in.ReadBytes(0)
		}
		f.Path = bytes.TrimSuffix(path, []byte{0})
	case "A":
		p.added++
	case "D":
		p.deleted++
	}
	if p.names += len(f.Path); len(p.files) == int(p.q.GetMaxFiles()) || p.names > maxNames {
		p.sum.Truncated = true
	} else {
		p.files = append(p.files, f)
	}
	return err
}

func octal(text string) uint32 {
	n, _ := strconv.ParseUint(text, 8, 32) // git has no larger ones
	return uint32(n)
}

// patches reads the patches.
func (p *patchReader) patches() error {
	for isBegin := true; ; {
		line, err := p.in.ReadSlice('\n')
		isWhole := err == nil
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		if isBegin {
			if err := p.line(line); err != nil {
				return err
			}
		}
		p.add(line)
		isBegin = isWhole
	}
}

// hunkHeader has the numbers of lines if they are not 1.
var hunkHeader = regexp.MustCompile(`^@@ -[0-9]+(?:,([0-9]+))? \+[0-9]+(?:,([0-9]+))? @@`)

// line reads the beginning of a line.
func (p *patchReader) line(line []byte) error {
	if p.old > 0 || p.new > 0 {
		switch line[0] {
		case ' ':
			p.old--
			p.new--
		case '-':
			p.old--
			p.files[0].Deletions++
		case '+':
			p.new--
			p.files[0].Additions++
		case '\\': // no newline at the end of the file
		default:
			return errOutput("diff-tree", "%.80q in a hunk", line)
		}
		return nil
	}
	if bytes.HasPrefix(line, []byte("diff --git ")) {
		return p.begin(line)
	}
	if !p.isOpen {
		return errOutput("diff-tree", "%.80q before the first patch", line)
	}
	if m := hunkHeader.FindSubmatch(line); m != nil {
		p.old, p.new = count(m[1]), count(m[2])
	} else if bytes.HasPrefix(line, []byte("Binary files ")) {
		p.files[0].Binary = true
	}
	return nil
}

func count(text []byte) int {
	if text == nil {
		return 1
	}
	n, _ := strconv.Atoi(string(text))
	return n
}

// begin begins the patch with a header: that of the next file which has this header.
func (p *patchReader) begin(line []byte) error {
	next := 0
	if p.isOpen && p.files[0].Status != "T" {
		next = 1
	}
	at := slices.IndexFunc(p.files[next:], func(f *packhorsev1.FileDiff) bool {
		// the line may be cut
		return strings.HasPrefix("diff --git "+quote("a/", f.GetOldPath())+" "+quote("b/", f.GetPath())+"\n", string(line))
	})
	isTooMany := at < 0 && p.sum.GetTruncated() // it is of a file beyond the limit
	switch {
	case isTooMany:
		next = len(p.files)
	case at < 0:
		return errOutput("diff-tree", "unexpected patch %.200q", line)
	default:
		next += at
	}
	if next == 0 && p.isOpen {
		return nil
	}
	if err := p.flush(next); err != nil {
		return err
	}
	if p.isOpen = true; isTooMany || p.left <= 0 {
		p.sum.Truncated = true
		return errEnough
	}
	return nil
}

// add adds a part of a line to the patch.
func (p *patchReader) add(line []byte) {
	f := p.files[0]
	size := int64(len(f.GetPatch()) + len(line))
	switch {
	case f.GetTruncated():
	case size <= min(int64(p.q.GetMaxFileBytes()), p.left):
		f.Patch = append(f.Patch, line...)
	default:
		if f.Truncated = true; p.left < int64(p.q.GetMaxFileBytes()) {
			p.left = 0 // the next file has no place
		}
		f.Patch = f.Patch[:bytes.LastIndexByte(f.Patch, '\n')+1]
	}
}

// flush sends the first n files. Their patches may need several messages.
func (p *patchReader) flush(n int) error {
	for _, f := range p.files[:n] {
		p.sum.Files++
		p.sum.Additions += int64(f.GetAdditions())
		p.sum.Deletions += int64(f.GetDeletions())
		p.left -= int64(len(f.GetPatch()))
		patch := f.GetPatch()
		next := func() []byte { // to the end of a line, not within a character
			part := patch[:min(len(patch), piece)]
			if end := bytes.LastIndexByte(part, '\n'); len(part) < len(patch) && end >= 0 {
				part = part[:end+1]
			}
			patch = patch[len(part):]
			return part
		}
		f.Patch = next()
		m := &packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_File{File: f}}
		for {
			if err := p.send(m); err != nil {
				return err
			}
			if len(patch) == 0 {
				break
			}
			m = &packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_Patch{Patch: next()}}
		}
	}
	p.files, p.isOpen = p.files[n:], false
	return nil
}

// quote quotes a path as Git does in patches (git-config(1), core.quotePath).
func quote(prefix string, path []byte) string {
	var b strings.Builder
	for _, c := range path {
		switch at := strings.IndexByte("\a\b\t\n\v\f\r\"\\", c); {
		case at >= 0:
			b.WriteString(`\` + `abtnvfr"\`[at:at+1])
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, "\\%03o", c)
		default:
			b.WriteByte(c)
		}
	}
	if b.Len() == len(path) {
		return prefix + string(path)
	}
	return `"` + prefix + b.String() + `"`
}

// unquote is the inverse of quote without a prefix.
func unquote(text string) []byte {
	// The escapes of Git are some of those of Go.
	if path, err := strconv.Unquote(text); err == nil && strings.HasPrefix(text, `"`) {
		return []byte(path)
	}
	return []byte(text)
}
