package merge

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// maxListed is the maximum number of commits in the message of Squash.
const maxListed = 100

// mergeMessage returns the message of Merge, as git fmt-merge-msg makes it, and that of Squash, which lists the
// commits.
func (c *change) mergeMessage() ([]byte, error) {
	into := strings.TrimPrefix(string(c.Target), places.BranchPrefix)
	if into = " into " + into; into == " into master" { // git's merge.suppressDest
		into = ""
	}
	if c.Method == Merge {
		return []byte("Merge " + c.Source.name() + into + "\n"), nil
	}
	ids, err := c.log(maxListed)
	if err != nil {
		return nil, err
	}
	message := "Squash " + c.Source.name() + into + "\n\n"
	for _, id := range ids {
		_, data, err := c.view.commit(c.ctx, id)
		if err != nil {
			return nil, err
		}
		message += "* " + subject(data) + "\n"
	}
	return []byte(message), nil
}

// name returns the source as in git fmt-merge-msg.
func (s *Source) name() string {
	for prefix, kind := range map[string]string{places.BranchPrefix: "branch", "refs/tags/": "tag",
		"refs/remotes/": "remote-tracking branch"} {
		short, isOf := strings.CutPrefix(string(s.Ref), prefix)
		if isOf && (strings.TrimPrefix(s.Text, prefix) == short || string(s.Ref) == s.Text) {
			return kind + " '" + short + "'"
		}
	}
	return "commit '" + s.Text + "'"
}

// log lists the commits of the source that are not in the target, or those of the range, in the order of git log.
func (c *change) log(limit int) ([]git.ObjectID, error) {
	exclude := c.Source.After
	if exclude.IsZero() {
		exclude = c.Head
	}
	return c.view.repo.Graph.Log(c.ctx, []git.ObjectID{c.Source.Commit}, c.view.shallow,
		graph.LogOptions{Exclude: []git.ObjectID{exclude}, Limit: limit, MaxVisited: maxVisited})
}

// maxVisited is the maximum number of commits that one list visits.
const maxVisited = 5_000_000

// subject returns the first line of a commit's message.
func subject(commit []byte) string {
	_, message, _ := bytes.Cut(commit, []byte("\n\n"))
	line, _, _ := bytes.Cut(bytes.TrimLeft(message, " \t\n"), []byte{'\n'})
	return string(bytes.TrimRight(line, " \t\r"))
}

// headerOf returns the header of the commit of a step.
func (c *change) headerOf(s *step) (edit.Header, error) {
	h := c.Header
	if c.Method == Revert {
		if len(h.Message) == 0 {
			h.Message = s.revertMessage()
		}
		return h, nil
	}
	head, message, _ := bytes.Cut(s.data, []byte("\n\n"))
	h.Author = ""
	for line := range bytes.Lines(head) {
		line = bytes.TrimSuffix(line, []byte{'\n'})
		if author, ok := bytes.CutPrefix(line, []byte("author ")); ok && h.Author == "" {
			h.Author = string(author)
		} else if bytes.HasPrefix(line, []byte("encoding ")) {
			h.Extra = append(bytes.Clone(line), '\n')
		}
	}
	if h.Message = message; len(c.Header.Message) > 0 {
		h.Message = c.Header.Message
	}
	return h, nil
}

// revertMessage returns the message of git revert.
func (s *step) revertMessage() []byte {
	text := subject(s.data)
	reverted, isRevert := strings.CutPrefix(text, `Revert "`)
	if isRevert && !strings.HasPrefix(reverted, `Revert "`) {
		text = `Reapply "` + reverted
	} else {
		text = `Revert "` + text + `"`
	}
	text += "\n\nThis reverts commit " + s.id.String()
	if len(s.parents) > 1 {
		text += fmt.Sprintf(", reversing\nchanges made to %s", s.against)
	}
	return []byte(text + ".\n")
}
