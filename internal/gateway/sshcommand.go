package gateway

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// sshCommand is what a client asks to be run. Nothing is: it names a service and a repository.
type sshCommand struct {
	service protocol.Service
	repo    git.RepoPath
}

// maxSSHCommand bounds a command in bytes: a path of the greatest length, each byte of it quoted.
const maxSSHCommand = 6 * git.MaxRepoPath

// notServed are commands of git that others serve over SSH, with what to tell who asks for them.
var notServed = map[string]string{
	"git-upload-archive":   "archives are not made over SSH",
	"git-lfs-authenticate": "Git LFS is not served over SSH",
	"git-lfs-transfer":     "Git LFS is not served over SSH",
	"git-shell":            "there is no shell here",
	"scp":                  "files are not copied here",
	"rsync":                "files are not copied here",
}

// parseSSHCommand reads a command in the one form in which git writes it: the service, a space, and the path as sq_quote_buf in git's quote.c
// quotes it. There is no shell, so nothing else has a meaning.
func parseSSHCommand(s string) (c sshCommand, err error) {
	if len(s) > maxSSHCommand {
		return c, fault.New(fault.Invalid, "the command is longer than %d bytes", maxSSHCommand)
	}
	word, rest, _ := strings.Cut(s, " ")
	if word == "git" { // as some clients say
		sub := ""
		sub, rest, _ = strings.Cut(rest, " ")
		word += "-" + sub
	}
	switch service := protocol.Service(word); service {
	case protocol.UploadPack, protocol.ReceivePack:
		c.service = service
	default:
		if why, ok := notServed[word]; ok {
			return c, fault.New(fault.Invalid, "%s; this server takes git-upload-pack and git-receive-pack alone", why)
		}
		return c, fault.New(fault.Invalid, "%.40q is no command here; this server takes git-upload-pack and git-receive-pack alone", word)
	}
	path, ok := unquoteSSH(rest)
	if !ok {
		return c, fault.New(fault.Invalid, "%s takes one path in single quotes, and no options", c.service)
	}
	if strings.HasPrefix(path, "-") {
		return c, fault.New(fault.Invalid, "%s takes no options", c.service)
	}
	if auth.HoldsToken(path) { // it would be in the logs of nodes, too
		return c, fault.New(fault.NotFound, "no such repository: there is a token in its path; revoke it")
	}
	if c.repo, err = git.ParseRepoPath(path); err != nil {
		return c, fault.Wrap(fault.NotFound, "no such repository: "+err.Error(), err)
	}
	return c, nil
}

// String is the command as git writes it.
func (c sshCommand) String() string {
	r := strings.NewReplacer("'", `'\''`, "!", `'\!'`)
	return string(c.service) + " '" + r.Replace(c.repo.String()) + "'"
}

// unquoteSSH undoes sq_quote_buf: everything is in single quotes, but for a quote or an exclamation mark between two parts with a backslash before it.
func unquoteSSH(s string) (string, bool) {
	var b strings.Builder
	for {
		rest, ok := strings.CutPrefix(s, "'")
		if !ok {
			return "", false
		}
		part, rest, ok := strings.Cut(rest, "'")
		if !ok {
			return "", false
		}
		b.WriteString(part)
		switch {
		case rest == "":
			return b.String(), true
		case strings.HasPrefix(rest, `\'`), strings.HasPrefix(rest, `\!`):
			b.WriteByte(rest[1])
			s = rest[2:]
		default:
			return "", false
		}
	}
}
