package inspect

import (
	"cmp"
	"io"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// FormatPatch sends parts of the mails of git format-patch --stdout, without Git's version at their ends. A message is
// valid until send returns.
func (c *Call) FormatPatch(q *packhorsev1.FormatPatchRequest,
	send func(*packhorsev1.FormatPatchResponse) error) error {
	limit := int(cmp.Or(q.GetMaxCommits(), 100))
	if limit < 0 || limit > maxCommits {
		return fault.InvalidField("max_commits", "%d is not between 0 and %d", limit, maxCommits)
	}
	var from git.ObjectID
	to, err := c.commit("to", q.GetTo())
	if err == nil && q.GetFrom() == "" {
		from, err = c.names.Parent(to)
	} else if err == nil {
		from, err = c.commit("from", q.GetFrom())
	}
	if err != nil {
		return err
	}
	series := []string{to.String()}
	if !from.IsZero() {
		series = append(series, "^"+from.String())
	}
	if err := c.checkLength("max_commits", limit, series); err != nil {
		return err
	}
	args := append([]string{"--stdout", "--no-signature", "--full-index", "--root", "-M", "-l" +
		strconv.Itoa(renameLimit), "--no-ext-diff", "--no-textconv"}, series...)
	return c.stream(command{name: "format-patch", args: args}, func(data []byte) error {
		return send(&packhorsev1.FormatPatchResponse{Data: data})
	})
}

// RangeDiff sends parts of the output of git range-diff. A version of the series has at most 1,000 commits. A message
// is valid until send returns.
func (c *Call) RangeDiff(q *packhorsev1.RangeDiffRequest, send func(*packhorsev1.RangeDiffResponse) error) error {
	var ranges [2][2]string // of each version, the base and the tip
	for i, version := range [...][4]string{{"old_base", q.GetOldBase(), "old_tip", q.GetOldTip()},
		{"new_base", cmp.Or(q.GetNewBase(), q.GetOldBase()), "new_tip", q.GetNewTip()}} {
		ids := &ranges[i]
		for n := range ids {
			field, revision := version[2*n], version[2*n+1]
			if revision == "" {
				return fault.InvalidField(field, "no revision")
			}
			id, err := c.commit(field, revision)
			if err != nil {
				return err
			}
			ids[n] = id.String()
		}
		if err := c.checkLength(version[2], maxCommits, []string{ids[1], "^" + ids[0]}); err != nil {
			return err
		}
	}
	args := []string{"--no-color", "--no-ext-diff", "--no-textconv"}
	before, after := ranges[0], ranges[1]
	switch { // Git accepts a range of one commit to itself only where both have the same base
	case after[0] == after[1]:
		args = append(args, before[0], before[1], before[0])
	case before[0] == before[1]:
		args = append(args, after[0], after[0], after[1])
	default:
		args = append(args, before[0]+".."+before[1], after[0]+".."+after[1])
	}
	return c.stream(command{name: "range-diff", args: args}, func(data []byte) error {
		return send(&packhorsev1.RangeDiffResponse{Data: data})
	})
}

// checkLength returns an error of a field if a series has more than limit commits, without merges.
func (c *Call) checkLength(field string, limit int, series []string) error {
	args := append([]string{"--count", "--no-merges", "--max-count=" + strconv.Itoa(limit+1)}, series...)
	text, err := c.text(command{name: "rev-list", args: args})
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(text); err != nil {
		return errOutput("rev-list", "%.100q", text)
	} else if n > limit {
		return fault.InvalidField(field, "the series has more than %d commits", limit)
	}
	return nil
}

// stream sends the output of a command in pieces, or that of an equal earlier one.
func (c *Call) stream(cmd command, send func([]byte) error) error {
	return c.cached(cmd, func(out io.Reader) error {
		for part := make([]byte, piece); ; {
			n, err := io.ReadFull(out, part)
			if n > 0 {
				if err := send(part[:n]); err != nil {
					return err
				}
			}
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				return nil
			} else if err != nil {
				return err
			}
		}
	})
}
