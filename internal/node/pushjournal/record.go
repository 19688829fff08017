package pushjournal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// version is the first line of a file.
const version = "push 1"

// maxLine is the maximum length of a line in bytes. Quoting makes four bytes of one.
const maxLine = 4*git.MaxRefName + 1<<10

// errIncomplete reports a record without an end line.
var errIncomplete = errors.New("push journal: the record has no end line")

// Record describes one push.
type Record struct {
	GitDir    string    // absolute path
	CommonDir string    // absolute path; GitDir unless the repository is a linked worktree
	Start     time.Time // when the push began

	// Refs has every ref that the push may lock, with its new value. The zero ID means that the ref is deleted.
	Refs map[git.RefName]git.ObjectID
	// Old has the value of each ref before an atomic push. The zero ID means that the ref did not exist. It is nil for
	// other pushes.
	Old map[git.RefName]git.ObjectID

	LocksHead      bool     // the push also locks HEAD, because HEAD points to one of Refs
	Committer      []string // environment variables that git update-ref needs to complete the push
	DisabledConfig []string // configuration keys that have to be false then
	Agreed         bool     // every hook has accepted all updates, so that Git was about to change the refs
}

// IsAtomic reports whether either all refs of the push change or none.
func (r *Record) IsAtomic() bool { return len(r.Old) > 0 }

// Deletes reports whether the push deletes a ref.
func (r *Record) Deletes() bool {
	for _, id := range r.Refs {
		if id.IsZero() {
			return true
		}
	}
	return false
}

// write encodes the record. It writes in pieces, because there can be many refs.
func (r *Record) write(w io.Writer) error {
	b := bufio.NewWriter(w)
	var line []byte
	text := func(word, value string) {
		line = append(strconv.AppendQuoteToASCII(append(append(line[:0], word...), ' '), value), '\n')
		_, _ = b.Write(line)
	}
	ids := func(word string, values map[git.RefName]git.ObjectID) {
		for name, id := range values {
			line = append(append(line[:0], word...), ' ')
			if id.IsZero() {
				line = append(line, '-')
			} else {
				line = id.AppendHex(line)
			}
			line = append(strconv.AppendQuoteToASCII(append(line, ' '), string(name)), '\n')
			_, _ = b.Write(line)
		}
	}
	_, _ = b.WriteString(version + "\n")
	text("git-dir", r.GitDir)
	text("common-dir", r.CommonDir)
	fmt.Fprintf(b, "start %d\n", r.Start.UnixNano())
	for _, variable := range r.Committer {
		text("committer", variable)
	}
	for _, key := range r.DisabledConfig {
		text("disable", key)
	}
	if r.LocksHead {
		_, _ = b.WriteString("head\n")
	}
	ids("ref", r.Refs)
	ids("old", r.Old)
	_, _ = b.WriteString("end\n")
	if r.Agreed {
		_, _ = b.WriteString(agreedLine)
	}
	return b.Flush()
}

// agreedLine follows the record when every hook has accepted an atomic push.
const agreedLine = "agreed\n"

// readRecord decodes a record. The error is errIncomplete if its end line is missing.
func readRecord(r io.Reader) (*Record, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	if !lines.Scan() {
		if err := lines.Err(); err != nil {
			return nil, err
		}
		return nil, errIncomplete
	}
	if lines.Text() != version {
		if strings.HasPrefix(version, lines.Text()) {
			return nil, errIncomplete
		}
		return nil, fmt.Errorf("push journal: unknown version %.40q, want %q", lines.Text(), version)
	}
	record := &Record{}
	for lines.Scan() {
		if lines.Text() != "end" {
			if err := record.readLine(lines.Text()); err != nil {
				return nil, fmt.Errorf("push journal: invalid line %.200q: %w", lines.Text(), err)
			}
			continue
		}
		if !filepath.IsAbs(record.GitDir) || !filepath.IsAbs(record.CommonDir) {
			return nil, errors.New("push journal: the record names no repository")
		}
		if record.Start.IsZero() {
			return nil, errors.New("push journal: the record has no start time")
		}
		record.Agreed = lines.Scan() && lines.Text()+"\n" == agreedLine
		return record, lines.Err()
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, errIncomplete
}

func (r *Record) readLine(line string) (err error) {
	word, value, _ := strings.Cut(line, " ")
	switch word {
	case "git-dir":
		r.GitDir, err = strconv.Unquote(value)
	case "common-dir":
		r.CommonDir, err = strconv.Unquote(value)
	case "start":
		var ns int64
		ns, err = strconv.ParseInt(value, 10, 64)
		r.Start = time.Unix(0, ns)
	case "committer":
		value, err = strconv.Unquote(value)
		r.Committer = append(r.Committer, value)
	case "disable":
		value, err = strconv.Unquote(value)
		r.DisabledConfig = append(r.DisabledConfig, value)
	case "head":
		r.LocksHead = true
	case "ref":
		err = readRef(&r.Refs, value)
	case "old":
		err = readRef(&r.Old, value)
	default:
		err = errors.New("unknown word")
	}
	return err
}

// readRef reads an ID and the quoted name of a ref into a map.
func readRef(values *map[git.RefName]git.ObjectID, text string) error {
	hex, quoted, _ := strings.Cut(text, " ")
	unquoted, err := strconv.Unquote(quoted)
	if err != nil {
		return err
	}
	name, err := git.ParseRefName(unquoted)
	if err != nil {
		return err
	}
	var id git.ObjectID
	if hex != "-" {
		if id, err = git.ParseObjectID(hex); err != nil {
			return err
		}
		if id.IsZero() {
			return errors.New(`the zero ID is written as "-"`)
		}
	}
	if *values == nil {
		*values = make(map[git.RefName]git.ObjectID)
	}
	(*values)[name] = id
	return nil
}
