package inspect

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// SeriesRequest requests commits as mails.
type SeriesRequest struct {
	From, To   string // From "": the first parent of To
	MaxCommits int    // 0: 100
	Caller     balance.Caller
}

// FormatPatch calls send with parts of the mails of git format-patch --stdout, without Git's version at their ends. The
// bytes are valid until send returns. Errors: Invalid and NotFound name the field; Invalid with max_commits is a longer
// series. Exhausted, Deadline.
func (i *Inspector) FormatPatch(ctx context.Context, r *repo.Repo, q SeriesRequest, send func([]byte) error) error {
	q.MaxCommits = cmp.Or(q.MaxCommits, 100)
	if q.MaxCommits < 0 || q.MaxCommits > maxCommits {
		return fault.InField("max_commits", fault.New(fault.Invalid, "%d is not between 0 and %d", q.MaxCommits, maxCommits))
	}
	names, err := i.names(ctx, r)
	if err != nil {
		return err
	}
	defer names.Close()
	var from git.ObjectID
	to, err := resolve(names, "to", q.To)
	if err == nil && q.From == "" {
		from, err = names.Parent(to)
	} else if err == nil {
		from, err = resolve(names, "from", q.From)
	}
	if err != nil {
		return err
	}
	series := []string{to.String()}
	if !from.IsZero() {
		series = append(series, "^"+from.String())
	}
	if err := i.checkLength(ctx, r, q.Caller, "max_commits", q.MaxCommits, series); err != nil {
		return err
	}
	args := append([]string{"--stdout", "--no-signature", "--full-index", "--root", "-M", "-l" +
		strconv.Itoa(renameLimit), "--no-ext-diff", "--no-textconv"}, series...)
	return i.stream(ctx, r, q.Caller, command{name: "format-patch", args: args}, send)
}

// RangeRequest requests the comparison of two versions of a series of commits.
type RangeRequest struct {
	OldBase, OldTip, NewBase, NewTip string // NewBase "": OldBase
	Caller                           balance.Caller
}

// RangeDiff calls send with parts of the output of git range-diff. The bytes are valid until send returns. Errors:
// Invalid and NotFound name the field; a version has at most 1,000 commits. Exhausted, Deadline.
func (i *Inspector) RangeDiff(ctx context.Context, r *repo.Repo, q RangeRequest, send func([]byte) error) error {
	names, err := i.names(ctx, r)
	if err != nil {
		return err
	}
	defer names.Close()
	var ids [4]git.ObjectID
	for n, of := range [...]struct{ field, revision string }{{"old_base", q.OldBase}, {"old_tip", q.OldTip},
		{"new_base", cmp.Or(q.NewBase, q.OldBase)}, {"new_tip", q.NewTip}} {
		if of.revision == "" {
			return fault.InField(of.field, fault.New(fault.Invalid, "no revision"))
		}
		if ids[n], err = resolve(names, of.field, of.revision); err != nil {
			return err
		}
	}
	for n, field := range [...]string{"old_tip", "new_tip"} {
		series := []string{ids[2*n+1].String(), "^" + ids[2*n].String()}
		if err := i.checkLength(ctx, r, q.Caller, field, maxCommits, series); err != nil {
			return err
		}
	}
	return i.stream(ctx, r, q.Caller, command{name: "range-diff",
		config: []string{"mailmap.blob=" + ids[3].String() + ":.mailmap"},
		args: []string{"--no-color", "--no-ext-diff", "--no-textconv", ids[0].String() + ".." + ids[1].String(),
			ids[2].String() + ".." + ids[3].String()}}, send)
}

// checkLength returns an error of a field if a series has more than limit commits, without merges.
func (i *Inspector) checkLength(ctx context.Context, r *repo.Repo, caller balance.Caller, field string, limit int,
	series []string) error {
	args := append([]string{"--count", "--no-merges", "--max-count=" + strconv.Itoa(limit+1)}, series...)
	text, err := i.text(ctx, r, caller, command{name: "rev-list", args: args}, 100)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(string(text)); err != nil {
		return errOutput("rev-list", "%.100q", text)
	} else if n > limit {
		return fault.InField(field, fault.New(fault.Invalid, "the series has more than %d commits", limit))
	}
	return nil
}

// stream sends the output of a command in pieces, or that of an equal earlier one.
func (i *Inspector) stream(ctx context.Context, r *repo.Repo, caller balance.Caller, c command,
	send func([]byte) error) error {
	key := fmt.Sprintf("%s %q", c.name, c.args)
	return cached(i.cache, r, key, send, func(send func([]byte, int) error) error {
		return i.run(ctx, r, caller, c, func(out io.Reader) error {
			for part := make([]byte, piece); ; {
				n, err := io.ReadFull(out, part)
				if n > 0 {
					if err := send(bytes.Clone(part[:n]), n); err != nil {
						return err
					}
				}
				switch err {
				case nil:
				case io.EOF, io.ErrUnexpectedEOF:
					return nil
				default:
					return err
				}
			}
		})
	})
}
