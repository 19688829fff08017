package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// sshOfOld is an ssh that runs commands for the host old.example on this machine: those of git by gitolite's own shell,
// as sshd does, and others as root's. It connects to other hosts. With MOVED the old name is that of the new server.
const sshOfOld = `#!/bin/sh
case " $* " in
*old.example\ *)
	while :; do case $1 in -o | -l | -p) shift 2 ;; -*) shift ;; *) break ;; esac; done
	host=$1
	shift
	case $host:${MOVED-} in
	git@*:) HOME=HOME-OF-GITOLITE SSH_CONNECTION="192.0.2.1 1 192.0.2.2 22" SSH_ORIGINAL_COMMAND=$*
		export HOME SSH_CONNECTION SSH_ORIGINAL_COMMAND
		exec /usr/share/gitolite3/gitolite-shell "$AS" ;;
	git@*) set -- -p "$MOVED" git@127.0.0.1 "$@" ;;
	*) exec sh -c "$*" ;;
	esac ;;
esac
exec SSH -F /dev/null -o StrictHostKeyChecking=yes -o UserKnownHostsFile="$HOME/known_hosts" -o IdentitiesOnly=yes -o BatchMode=yes -i "$HOME/$AS" "$@"
`

// TestMoveOfGitolite follows move-gitolite.md with a real gitolite, and back. Users keep their keys and rights.
func TestMoveOfGitolite(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"gitolite", "ssh", "ssh-keygen", "rsync"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("*** There is no %s: moving from gitolite is NOT tested. ***", program)
		}
	}
	g := followGuide(t, "move-gitolite.md", "--chown=git:git ", "")
	home := filepath.Join(g.dir, "gitolite")
	g.words = append([]string{"/home/git/", home + "/", "gitolite writable", "HOME=" + home + " gitolite writable"},
		g.words...)
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(g.dir, "bin/ssh"),
		strings.NewReplacer("HOME-OF-GITOLITE", home, "exec SSH", "exec "+ssh).Replace(sshOfOld))
	if err := os.Chmod(filepath.Join(g.dir, "bin/ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	g.env = append(g.env, "AS=alice", "USER=git", "GL_BINDIR=/usr/share/gitolite3", "GL_LIBDIR=/usr/share/gitolite3/lib")
	const onOld = "cd gitolite; export HOME=$PWD GL_BYPASS_ACCESS_CHECKS=1; "
	g.sh("mkdir gitolite etc/ssh; for user in alice bob; do ssh-keygen -q -t ed25519 -N '' -C $user -f $user; done; " +
		"ssh-keygen -q -t ed25519 -N '' -f etc/ssh/ssh_host_ed25519_key")
	g.sh(onOld + "gitolite setup -pk ../alice.pub; " +
		"sed -i \"s/GIT_CONFIG_KEYS  *=>  *''/GIT_CONFIG_KEYS => '.*'/\" .gitolite.rc") // permits desc
	g.sh(`git clone -q git@old.example:gitolite-admin admin
cp bob.pub admin/keydir
cat >admin/conf/gitolite.conf <<'END'
repo gitolite-admin
    RW+ = alice
repo team/app
    desc = "An app"
    RW+ = alice
    RW dev/ = bob
    R = bob
repo testing
    RW+ = @all
END
git -C admin add .
git -C admin commit -q -m 'an app'
git -C admin push -q`)
	repo := linear(t)
	push := func(user, url, ref string) (string, error) {
		t.Helper()
		return g.try("AS=" + user + " git -C " + repo.Dir + " push " + url + " " + ref)
	}
	const old, new = "git@old.example:team/app", "ssh://git@git.example:2222/team/app"
	if out, err := push("alice", old, "--mirror"); err != nil {
		t.Fatal(out)
	}
	g.sh("git -C gitolite/repositories/team/app.git symbolic-ref HEAD refs/heads/main")

	g.follow(2)
	trust := func(key string) {
		t.Helper()
		address, _, _ := strings.Cut(strings.TrimPrefix(g.server.ssh, "ssh://"), "/")
		host, port, _ := strings.Cut(address, ":")
		g.words = append([]string{"MOVED=moved", "MOVED=" + port}, g.words...)
		g.sh("echo \"[" + host + "]:" + port + " $(ssh-keygen -y -f " + key + ")\" >known_hosts")
	}
	trust("/srv/git/.packhorse/ssh/ssh_host_ed25519_key")
	for _, test := range []struct {
		user, ref string
		may       bool
	}{{"alice", "trial", true}, {"alice", "dev/x", true}, {"bob", "dev/y", true}, {"bob", "other", false}} {
		if out, err := push(test.user, new, "main:refs/heads/"+test.ref); (err == nil) != test.may {
			t.Errorf("%s pushes %s: %v, want a push: %v\n%s", test.user, test.ref, err, test.may, out)
		}
	}
	if out, err := g.try("AS=bob git ls-remote ssh://git@git.example:2222/gitolite-admin"); err == nil {
		t.Errorf("bob may read gitolite-admin: %s", out)
	}
	if out, err := push("bob", old, "main:refs/heads/dev/late"); err != nil {
		t.Error(out)
	}

	g.follow(1)
	out, err := push("alice", old, "main:refs/heads/never")
	if err == nil || !strings.Contains(out, "Pushes go to ssh://") {
		t.Errorf("a push to gitolite after the switch: %v\n%s", err, out)
	}
	if out := g.follow(1); strings.Contains(out, "differs") {
		t.Error("the check finds differences")
	}
	if g.tip(new, "refs/heads/dev/late") == "" || g.tip(new, "refs/heads/trial") != "" {
		t.Error("the second copy did not make the repositories equal")
	}
	if out := g.sh("packhorse repo info team/app --root /srv/git"); !strings.Contains(out, "An app") {
		t.Errorf("the description is lost:\n%s", out)
	}

	// The new server gets the old name and keys.
	g.stop()
	g.follow(1)
	g.serve("serve --config /etc/packhorse/serve.toml")
	trust("/etc/ssh/ssh_host_ed25519_key")
	if out := g.sh("MOVED=moved git ls-remote " + old); !strings.Contains(out, "refs/heads/dev/late") {
		t.Errorf("the old name has %s", out)
	}
	g.follow(1)
	if out, err := push("bob", old, "main:refs/heads/dev/new"); err != nil {
		t.Errorf("a push to the old URL: %s", out)
	}
	g.sh("rm gitconfig")

	// And back.
	g.stop()
	g.follow(2)
	if g.tip(old, "refs/heads/dev/new") == "" {
		t.Error("gitolite has no branch that was pushed to Packhorse")
	}
	for ref, may := range map[string]bool{"dev/again": true, "other": false} {
		if out, err := push("bob", old, "main:refs/heads/"+ref); (err == nil) != may {
			t.Errorf("back at gitolite bob pushes %s: %v, want a push: %v\n%s", ref, err, may, out)
		}
	}
}
