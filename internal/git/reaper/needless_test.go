package reaper

import "testing"

func TestNeedless(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what        string
		env         map[string]string
		pid, parent int
		first, want string
	}{
		{"a shell", nil, 100, 50, "systemd", ""},
		{"a shell of a service", map[string]string{"INVOCATION_ID": "x", "SYSTEMD_EXEC_PID": "50"}, 100, 50, "systemd",
			""},
		{"an orphan of a service", map[string]string{"INVOCATION_ID": "x", "SYSTEMD_EXEC_PID": "50"}, 100, 1,
			"systemd", ""},
		{"a service", map[string]string{"INVOCATION_ID": "x", "SYSTEMD_EXEC_PID": "100"}, 100, 1, "systemd", "systemd"},
		{"a user's service", map[string]string{"INVOCATION_ID": "x", "SYSTEMD_EXEC_PID": "100"}, 100, 900, "systemd",
			"systemd"},
		{"a service of an old systemd", map[string]string{"INVOCATION_ID": "x"}, 100, 1, "systemd", "systemd"},
		{"process 1", nil, 1, 0, "packhorse", "container"},
		{"below tini", nil, 7, 1, "tini", "container"},
		{"a grandchild of tini", nil, 9, 7, "tini", ""},
		{"below an init that stays", nil, 7, 1, "pause", ""},
		{"a daemon without systemd", nil, 100, 1, "init", ""},
	} {
		env := func(name string) string { return test.env[name] }
		if got := needless(env, test.pid, test.parent, test.first); got != test.want {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
	}
}
