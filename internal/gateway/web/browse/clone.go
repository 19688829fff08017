package browse

import (
	"net/url"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/packhorse-git/packhorse/internal/gateway/web/page"
)

// cloneBox returns the commands to clone.
func (q *request) cloneBox() g.Node {
	address := q.v.Address(q.repo.String())
	line := func(id, label, text string) g.Node {
		return h.Div(h.Label(h.For(id), g.Text(label)), h.Input(h.ID(id), h.ReadOnly(), h.Value(text), h.Data("copy", "")))
	}
	ssh := g.Node(nil)
	if over := q.sshAddress(q.repo.String()); over != "" {
		ssh = line("clone-ssh", "SSH", "git clone "+quote(over))
	}
	return h.Section(h.Class("clone"), h.H2(g.Text("Clone")), line("clone-http", "HTTP", "git clone "+quote(address)), ssh,
		line("clone-mirror", "Mirror", "git clone --mirror "+quote(address)))
}

// sshAddress returns the address of a repository over SSH; "" without SSH.
func (q *request) sshAddress(repo string) string {
	host, port := q.ssh, ""
	if i := strings.LastIndexByte(q.ssh, ':'); i >= 0 && !strings.HasSuffix(q.ssh, "]") {
		host, port = q.ssh[:i], q.ssh[i:]
	}
	if here, err := url.Parse(q.v.Address("")); err == nil && host == "" {
		host = strings.TrimSuffix(here.Host, ":"+here.Port())
	}
	switch {
	case q.ssh == "":
		return ""
	case port != "" && port != ":22" || strings.HasPrefix(host, "["):
		return "ssh://git@" + host + port + "/" + page.Path(repo)
	}
	return "git@" + host + ":" + repo
}

// quote quotes an argument for a shell, if that is necessary.
func quote(text string) string {
	if strings.ContainsAny(text, " $&;[]()'\"\\*?<>|`!#~") {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}
