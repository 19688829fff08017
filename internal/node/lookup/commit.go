package lookup

import (
	"bytes"
	"context"
	"math"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Maximum sizes of the parts of a commit. Longer parts are cut.
const (
	maxMessage = 1 << 20  // bytes
	maxParents = 10_000   // of an octopus
	maxField   = 16 << 10 // bytes of a name, an email address, or the encoding
)

// Commit is a commit as it is stored.
type Commit struct {
	ID                git.ObjectID
	Tree              git.ObjectID
	Parents           []git.ObjectID
	Author, Committer Signature
	Message           []byte
	Encoding          string // of message and names, according to the commit; empty: UTF-8
	Truncated         bool   // a part exceeded its maximum size and was cut
}

// Signature is the author or committer with a time. An unreadable name is empty, an unreadable time 0.
type Signature struct {
	Name, Email []byte
	Seconds     int64 // since the epoch
	Offset      int32 // minutes east of UTC
}

// Commit reads the commit that a revision names.
func (l *Reader) Commit(ctx context.Context, r *repo.Repo, revision string) (Commit, error) {
	c, err := l.begin(ctx, r)
	if err != nil {
		return Commit{}, err
	}
	defer c.end()
	id, err := c.commitOf(revision)
	if err != nil {
		return Commit{}, err
	}
	return c.commit(id)
}

// commit reads a commit. The result does not keep more memory than Commit.memory counts.
func (c *operation) commit(id git.ObjectID) (Commit, error) {
	data, err := c.read(id, git.Commit, maxObject)
	if err != nil {
		return Commit{}, err
	}
	defer c.drop(int64(len(data)))
	commit, err := parseCommit(id, data, c.repo.Format)
	if int64(len(data)) <= commit.memory() {
		return commit, err
	}
	commit.Message = bytes.Clone(commit.Message)
	for _, s := range []*Signature{&commit.Author, &commit.Committer} {
		s.Name, s.Email = bytes.Clone(s.Name), bytes.Clone(s.Email)
	}
	return commit, err
}

// parseCommit parses a commit as leniently as git: only tree and parents must be valid. The result shares data's
// memory.
func parseCommit(id git.ObjectID, data []byte, format git.ObjectFormat) (Commit, error) {
	c := Commit{ID: id}
	headers, err := pack.ParseCommit(data, format)
	if err != nil {
		return c, fault.Wrap(fault.Corrupt, "commit "+id.String()+" is damaged", err)
	}
	c.Tree, c.Parents = headers.Tree, headers.Parents
	if len(c.Parents) > maxParents {
		c.Parents, c.Truncated = c.Parents[:maxParents:maxParents], true
	}
	encoded := false
	for len(data) > 0 {
		line, rest, _ := bytes.Cut(data, []byte{'\n'})
		data = rest
		if len(line) == 0 {
			break
		}
		if ident, ok := bytes.CutPrefix(line, []byte("author ")); ok { // the last one counts
			c.Author = c.signature(ident)
		} else if ident, ok := bytes.CutPrefix(line, []byte("committer ")); ok {
			c.Committer = c.signature(ident)
		} else if name, ok := bytes.CutPrefix(line, []byte("encoding ")); ok && !encoded { // the first one counts
			c.Encoding, encoded = string(c.cut(name, maxField)), true
		}
	}
	c.Message = c.cut(data, maxMessage)
	return c, nil
}

func (c *Commit) cut(b []byte, limit int) []byte {
	if len(b) > limit {
		c.Truncated = true
		return b[:limit:limit]
	}
	return b
}

// signature parses "name <email> seconds offset" like git's split_ident_line: the name ends before the first '<', the
// address before the next '>', and the date follows the last '>'.
func (c *Commit) signature(line []byte) (s Signature) {
	open := bytes.IndexByte(line, '<')
	if open < 0 {
		return s
	}
	end := bytes.IndexByte(line[open+1:], '>')
	if end < 0 {
		return s
	}
	s.Email = c.cut(line[open+1:open+1+end], maxField)
	s.Name = c.cut(trimEnd(line[:open]), maxField)
	s.Seconds, s.Offset = date(line[bytes.LastIndexByte(line, '>')+1:])
	return s
}

// date reads seconds and an offset as +hhmm. Both are 0 if one of them is missing. A value out of range is 0.
func date(text []byte) (seconds int64, offset int32) {
	text = trimStart(text)
	n := digits(text)
	if n == 0 {
		return 0, 0
	}
	zone := trimStart(text[n:])
	if len(zone) == 0 || zone[0] != '+' && zone[0] != '-' {
		return 0, 0
	}
	z := digits(zone[1:])
	if z == 0 {
		return 0, 0
	}
	seconds, err := strconv.ParseInt(string(text[:n]), 10, 64)
	if err != nil {
		seconds = 0
	}
	hhmm, err := strconv.ParseInt(string(zone[1:1+z]), 10, 32)
	if err != nil || hhmm == math.MaxInt32 {
		return seconds, 0
	}
	offset = int32(hhmm/100*60 + hhmm%100)
	if zone[0] == '-' {
		offset = -offset
	}
	return seconds, offset
}

func digits(b []byte) int {
	n := 0
	for n < len(b) && '0' <= b[n] && b[n] <= '9' {
		n++
	}
	return n
}

// space is the white space of git.
const space = " \t\n\r"

func trimStart(b []byte) []byte { return bytes.TrimLeft(b, space) }
func trimEnd(b []byte) []byte   { return bytes.TrimRight(b, space) }
