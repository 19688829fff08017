package roles

import (
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/repo"
	"github.com/packhorse-git/packhorse/internal/storage"
)

// Config is everything that can be set, in the order in which docs/config.md shows it. The comments on the fields are
// that page: `go test ./internal/roles -run Docs -update` writes it.
type Config struct {
	// The directory below which the repositories lie, at any depth: bare repositories and ".git" directories. It has to exist.
	Root string `toml:"root"`

	// Where a process keeps what is its own: a lock, the pack cache, the admin socket. One process at a time uses it. Empty means
	// ROOT/.packhorse; for a gateway, which has no root, packhorse/gateway below $XDG_STATE_HOME or ~/.local/state.
	State string `toml:"state"`

	HTTP     HTTPConfig      `toml:"http"`
	SSH      SSHConfig       `toml:"ssh"`
	Auth     AuthConfig      `toml:"auth"`
	Storage  StorageConfig   `toml:"storage"`
	Node     []NodeConfig    `toml:"node"`
	Route    []RouteConfig   `toml:"route"`
	Ops      OpsConfig       `toml:"ops"`
	Shutdown ShutdownConfig  `toml:"shutdown"`
	Cache    CacheConfig     `toml:"cache"`
	Git      GitConfig       `toml:"git"`
	Fetch    FetchConfig     `toml:"fetch"`
	Push     PushConfig      `toml:"push"`
	Webhook  []WebhookConfig `toml:"webhook"`
	Lanes    LanesConfig     `toml:"lanes"`
	Log      LogConfig       `toml:"log"`

	Maintenance MaintenanceConfig `toml:"maintenance"`
	Warmup      WarmupConfig      `toml:"warmup"`
}

// HTTPConfig is the public listener.
type HTTPConfig struct {
	// Host and port of the public listener. Port 0 picks a free port, which is printed at the start.
	Address string `toml:"address"`

	// Lets everybody who reaches the listener read every repository that no [[auth.rule]] is about. Without it, and without tokens, rules or a
	// hook (docs/auth.md), only a loopback address is accepted; there everybody may read as long as there are none of these.
	PublicRead bool `toml:"public_read"`

	// File with the TLS certificate and its chain (PEM). With it and tls_key the listener speaks TLS only. Both files are read again
	// when they change; what cannot be loaded is reported in the log and the last good certificate stays.
	TLSCert string `toml:"tls_cert"`

	// File with the private key of tls_cert (PEM).
	TLSKey string `toml:"tls_key"`

	// How long a client may take to send a request's headers, and to finish a TLS handshake.
	HeaderTimeout Duration `toml:"header_timeout"`

	// How long a connection may stay open without a request.
	IdleTimeout Duration `toml:"idle_timeout"`

	// How long a client may send nothing in the middle of a request's body.
	ReadStall Duration `toml:"read_stall"`

	// How long a client may keep an answer waiting before its connection is cut: each time, it has to take 64 KiB, or what is left.
	WriteStall Duration `toml:"write_stall"`

	// The most bytes of a request's headers.
	MaxHeader Size `toml:"max_header"`

	// The most bytes of a request's body, counted after gzip was undone.
	MaxBody Size `toml:"max_body"`
}

// AuthConfig says who may do what; docs/auth.md tells how it fits together. A gateway and serve know callers; a storage node trusts its gateways.
type AuthConfig struct {
	// File with the hashes of the tokens that "packhorse token" makes and revokes; a server follows it. Empty means STATE/tokens.
	Tokens string `toml:"tokens"`

	// How many wrong credentials from one address, or from as many addresses for one user name, are answered at once. After them each one more is answered later, with
	// 429 and Retry-After, up to a minute. Right tokens are never held up. 0: no limit.
	Guesses int `toml:"guesses"`

	Rule []RuleConfig `toml:"rule"`
	Hook HookConfig   `toml:"hook"`
}

// RuleConfig says what some callers may do with some repositories; each has a table of its own. The first that is for a caller and a repository
// decides; where none is, the hook does; without a hook nothing is allowed. Without any rule and hook, whoever has a token may do what the token is for.
// SIGHUP reads them again.
type RuleConfig struct {
	// Who: "anonymous" for callers who say nothing of themselves, "*" for those who are known, a name ("alice"), or a name with how it was proved:
	// "token:ci", "key:alice", "certificate:alice", "hook:alice".
	Who []string `toml:"who"`

	// Which repositories, by whole components of their paths: "team/app" that one, "team/*" those directly in team, "team/**" those at any depth
	// below it, "**" all. A final ".git" does not count.
	Repositories []string `toml:"repositories"`

	// What they may do: "none", "read", "write" or "admin", each with those before it. Anonymous callers may read at most. What they may, everybody
	// may. A token may do no more than it was made for, whatever the rules say.
	May string `toml:"may"`
}

// HookConfig is an application that is asked, over HTTP, whom a credential that is no token of ours proves, and what callers may do whom no rule is
// about.
type HookConfig struct {
	// Where questions are sent with POST: "http://..." or "https://...". Empty: there is no hook.
	URL string `toml:"url"`

	// File with the secret that is sent along as "Authorization: Bearer SECRET": one word of at least 16 bytes, that others cannot read (mode 0600).
	// It is read again when it changes.
	SecretFile string `toml:"secret_file"`

	// How long an answer may take. Without one a request is answered with 503 and Retry-After.
	Timeout Duration `toml:"timeout"`

	// How long an answer is remembered; one that refuses for 10 seconds at most.
	CacheTTL Duration `toml:"cache_ttl"`

	// The most answers that are remembered.
	CacheSize int `toml:"cache_size"`

	// What holds when the hook fails: "closed", nothing, or "stale", an answer that is remembered and ran out within the last hour.
	Fail string `toml:"fail"`

	// Whether an answer holds for the client's address alone that was in the question.
	PerAddress bool `toml:"per_address"`
}

// Values of auth.hook.fail.
const (
	failClosed = "closed"
	failStale  = "stale"
)

// SSHConfig is the SSH listener. docs/ssh.md says more.
type SSHConfig struct {
	// Host and port of the SSH listener; empty: there is none. Port 0 picks a free port, which is printed at the start.
	Address string `toml:"address"`

	// Directory of the host keys, files as of ssh-keygen that nobody else can read: ssh_host_ed25519_key, ssh_host_ecdsa_key and
	// ssh_host_rsa_key, those that there are. If there is none, the first is made. Empty means STATE/ssh.
	HostKeys string `toml:"host_keys"`

	// Public keys of users: a directory with a file for each user, called as the user, or one file, where the comment at the end of each line is the
	// user's name. The format is that of authorized_keys. Read again when it changes.
	AuthorizedKeys string `toml:"authorized_keys"`

	// File with the public keys of those who sign users' certificates. Read again when it changes.
	TrustedUserCA string `toml:"trusted_user_ca"`

	// File with what is no longer good: public keys, fingerprints, and certificates by "serial: N" or "id: NAME". Read again when it changes;
	// if that fails, no key is good.
	RevokedKeys string `toml:"revoked_keys"`

	// Lets clients in without a key, who log in as "anonymous", or by any name if there are no keys.
	Anonymous bool `toml:"anonymous"`

	// Ciphers that clients may use. Others than AES-GCM cost several times the CPU.
	Ciphers []string `toml:"ciphers"`

	// How long a client may take to log in.
	LoginGrace Duration `toml:"login_grace"`

	// How many keys a client may try.
	AuthTries int `toml:"auth_tries"`

	// How often a client is asked whether it is there; its connection ends if it does not answer for three times as long. 0 means never.
	KeepAlive Duration `toml:"keep_alive"`

	// How long a connection may stay open without a session, and a session without a request.
	IdleTimeout Duration `toml:"idle_timeout"`

	// The most sessions at once on one connection.
	Sessions int `toml:"sessions"`

	// The most connections.
	Connections int `toml:"connections"`

	// The most connections from one address (of IPv6: from one network of 64 bits).
	AddressConnections int `toml:"address_connections"`

	// The most connections that have not logged in yet. When there are half as many, some new ones are refused at random, and more and more.
	Logins int `toml:"logins"`

	// The most connections from one address that have not logged in yet.
	AddressLogins int `toml:"address_logins"`

	// The most new connections each second from one address, on average over ten seconds. 0 means without a limit.
	AddressRate int `toml:"address_rate"`
}

// StorageConfig is the port of a storage node: the control API and the side channels of gateways.
type StorageConfig struct {
	// Where the node listens: "HOST:PORT", or "unix:PATH" for gateways on the same machine. Empty: nowhere, which `packhorse serve` accepts.
	// An address that other machines can reach needs client_ca or secret_file.
	Listen string `toml:"listen"`

	// Rights on the socket of "unix:PATH". With "0660" the processes of its group may connect as well.
	SocketMode FileMode `toml:"socket_mode"`

	// File with the secret that callers have to know: one word of at least 16 bytes, as from `openssl rand -hex 32`, that others cannot
	// read (mode 0600). It is read again when it changes.
	SecretFile string `toml:"secret_file"`

	// File with the node's TLS certificate and its chain (PEM). With it and tls_key the port speaks TLS only. The TLS files are read again when
	// they change.
	TLSCert string `toml:"tls_cert"`

	// File with the private key of tls_cert (PEM).
	TLSKey string `toml:"tls_key"`

	// File with the certificates (PEM) of those who sign gateways' certificates. With it a caller without such a certificate is refused.
	ClientCA string `toml:"client_ca"`

	// The most side channels that may be open; if several callers have some, each at most three quarters of it.
	Channels int `toml:"channels"`

	// How long a side channel may stay open without a transfer. Gateways are told, and close theirs after half of it at the latest.
	ChannelIdle Duration `toml:"channel_idle"`

	// How long a caller may keep the node waiting: in the middle of a transfer on a side channel, within a request, or while it is sent an answer.
	Stall Duration `toml:"stall"`
}

// NodeConfig is one storage node that a gateway asks; each has a table of its own. The flag --node NAME=ADDRESS,WEIGHT adds one, or goes over
// the address and the weight of the one with that name. SIGHUP reads the tables again.
type NodeConfig struct {
	// What routes, commands and metrics call the node: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// Where the node listens: "HOST:PORT" or "unix:PATH". One on another machine needs tls_ca or secret_file.
	Address string `toml:"address"`

	// The node's share of the requests among the nodes of its route, 1 to 1000: with 2 it is given twice as many as one with 1.
	Weight int `toml:"weight"`

	// How packs come from the node: by "channel", connections of their own, or "inband", within the control call, where a proxy in between
	// knows nothing else. It costs several times the CPU.
	Transport string `toml:"transport"`

	// How long a side channel to the node is kept for the next transfer, and no longer than half of the node's storage.channel_idle.
	ChannelIdle Duration `toml:"channel_idle"`

	// How long the node may keep the gateway waiting in the middle of a transfer on a side channel before the channel is cut.
	Stall Duration `toml:"stall"`

	// File with the secret that the node wants; see storage.secret_file.
	SecretFile string `toml:"secret_file"`

	// File with the certificates (PEM) of those who sign the node's certificate. With it the gateway speaks TLS with the node.
	TLSCA string `toml:"tls_ca"`

	// File with the certificate and its chain (PEM) that the gateway shows the node.
	TLSCert string `toml:"tls_cert"`

	// File with the private key of tls_cert (PEM).
	TLSKey string `toml:"tls_key"`

	// The name in the node's certificate, where it is not the host of its address.
	ServerName string `toml:"server_name"`
}

// RouteConfig says which nodes have the repositories below a path; each has a table of its own. Without any, every node has all
// repositories. SIGHUP reads them again.
type RouteConfig struct {
	// The repositories whose paths begin with it, by whole components: "team" is for team/app and not for teams/app. Empty: all. The longest
	// prefix holds.
	Prefix string `toml:"prefix"`

	// Names of the nodes that have these repositories. Several are replicas, which whoever operates them keeps alike: the least busy one that is
	// up is asked, and another one if it fails before the first byte.
	Nodes []string `toml:"nodes"`
}

// OpsConfig is the private listener for metrics, health and profiles.
type OpsConfig struct {
	// Host and port of the private listener; empty turns it off. It serves profiles to whoever reaches it.
	Address string `toml:"address"`

	// Accepts an address for the private listener that other machines can reach. Say so only if the network is trusted.
	Expose bool `toml:"expose"`
}

// ShutdownConfig says how the process ends.
type ShutdownConfig struct {
	// How long to go on accepting requests after readiness turned red, so that load balancers notice first.
	Delay Duration `toml:"delay"`

	// How long running requests may take to end before they are cut off.
	Grace Duration `toml:"grace"`
}

// CacheConfig is the pack cache.
type CacheConfig struct {
	// Keeps the packs that were made, to answer the same request again with a copy.
	Enabled bool `toml:"enabled"`

	// Directory of the cache; a tmpfs works. Empty means STATE/cache.
	Dir string `toml:"dir"`

	// The most bytes that the cache may hold. 0 means 10 GiB or a tenth of the file system, whichever is less.
	MaxBytes Size `toml:"max_bytes"`

	// An entry that nobody asked for in this time is dropped.
	MaxIdle Duration `toml:"max_idle"`

	// An entry that was asked for only once is dropped after this time, so that what nobody shares costs little disk.
	Probation Duration `toml:"probation"`

	// Bytes of the file system that the cache leaves free, whatever max_bytes says. 0 means a twentieth of it, but at least 1 GiB
	// (or a tenth, where that is less) and at most 5 GiB.
	MinFree Size `toml:"min_free"`

	// How long the making of a pack goes on after its last reader went away, in case another one comes.
	Grace Duration `toml:"grace"`
}

// GitConfig is about the git processes that make packs.
type GitConfig struct {
	// The git program: a name to be found in PATH, or a path.
	Program string `toml:"program"`

	// How many git processes may make packs at the same time. 0 means one for each CPU.
	Slots int `toml:"slots"`

	// How many packs may wait for a slot before further requests are refused.
	Queue int `toml:"queue"`

	// How long a pack may wait for a slot before its request is refused.
	Wait Duration `toml:"wait"`

	// How long one git process may run before it is killed. 0 means without a limit.
	TimeLimit Duration `toml:"time_limit"`

	// Niceness of the git processes, 0 to 19: with 10, answers from the cache and small requests go first.
	Nice int `toml:"nice"`

	// Threads of each git process. 0 divides the CPUs by the slots.
	Threads int `toml:"threads"`

	// Delta window (git's pack.window) for packs with whole history and for what a client lacks. -1 is git's own choice, 10;
	// docs/decisions/0001 has what 5 saves.
	Window int `toml:"window"`

	// Delta window for shallow clones. Few versions of a file are near each other in them: the next neighbour is enough.
	ShallowWindow int `toml:"shallow_window"`

	// Delta window for shallow clones of depth 1. There is one version of each file then, and to search for deltas is half of the cost
	// for hardly a byte less.
	SnapshotWindow int `toml:"snapshot_window"`

	// The zlib level of what shallow packs compress anew, 1 to 9. -1 is git's own choice.
	ShallowCompression int `toml:"shallow_compression"`

	// The most bytes that the delta window of one thread may use.
	WindowMemory Size `toml:"window_memory"`
}

// FetchConfig says what one fetch may ask for. Where a key below names one of git's, a repository's own config goes over it
// (docs/protocol.md).
type FetchConfig struct {
	// Which objects a client may ask for by ID. "any": every object that exists. "reachable": what visible refs reach.
	// "tip": what visible refs point at. "auto": "reachable" as soon as callers are told from one another (docs/auth.md), which a gateway tells the
	// node, "any" elsewhere. In a repository with alternates or hidden refs "any" counts as "reachable", unless its own config says
	// uploadpack.allowAnySHA1InWant.
	Wants string `toml:"wants"`

	// The most "want" lines in one request.
	MaxWants int `toml:"max_wants"`

	// The most "have" lines in one request.
	MaxHaves int `toml:"max_haves"`

	// The most "shallow" and "deepen-not" lines in one request.
	MaxShallow int `toml:"max_shallow"`

	// Whether a client may leave objects out, as partial clones do. Git's uploadpack.allowFilter.
	AllowFilter bool `toml:"allow_filter"`

	// Whether a client of protocol version 2 may want refs by their names. Git's uploadpack.allowRefInWant.
	AllowRefInWant bool `toml:"allow_ref_in_want"`

	// Whether a client of version 0 or 1 may want the tips of hidden refs. Git's uploadpack.allowTipSHA1InWant.
	AllowTip bool `toml:"allow_tip"`

	// Whether a client of version 0 or 1 is told that it may want what refs reach. Git's uploadpack.allowReachableSHA1InWant.
	AllowReachable bool `toml:"allow_reachable"`

	// Whether a client of version 0 or 1 may want every object that exists. Git's uploadpack.allowAnySHA1InWant.
	AllowAny bool `toml:"allow_any"`

	// What is said of the branch that HEAD names before it has a commit: "advertise", "allow" or "ignore". Git's lsrefs.unborn.
	Unborn string `toml:"unborn"`

	// How long an answer may be silent while its pack is made; then an empty packet says that it goes on. 0 means as long as it
	// takes. Git's uploadpack.keepAlive.
	KeepAlive Duration `toml:"keep_alive"`

	// Whether server and client tell each other an ID of their session, for the logs of both. Git's transfer.advertiseSID.
	SessionID bool `toml:"session_id"`

	// Whether a client of version 2 may ask for the size of objects, where it may fetch every one. Git's transfer.advertiseObjectInfo.
	ObjectInfo bool `toml:"object_info"`
}

// PushConfig says how pushes are taken. Each needs a caller who may write.
type PushConfig struct {
	// Whether pushes are taken at all.
	Enabled bool `toml:"enabled"`

	// The most bytes of a push's pack. 0 means without a limit. A repository's own receive.maxInputSize holds if it is less.
	MaxSize Size `toml:"max_size"`

	// The most bytes that git may ask for in one piece while it takes a push. 0 means without a limit. Objects that are stored as deltas, or are no blobs,
	// cannot be larger; what a few KB claim to be many GB is refused.
	MaxMemory Size `toml:"max_memory"`

	// The most refs that one push may change.
	MaxCommands int `toml:"max_commands"`

	// The most options (`git push -o`) of one push. 0 means that none may be sent; so does receive.advertisePushOptions = false in a repository's config.
	MaxOptions int `toml:"max_options"`

	// How many pushes may be taken at the same time: each is one git process. 0 means two for each CPU.
	Slots int `toml:"slots"`

	// How many pushes may wait for a slot before further ones are refused.
	Queue int `toml:"queue"`

	// How long a push may wait for a slot before it is refused.
	Wait Duration `toml:"wait"`

	// How long one push may take before it is given up.
	TimeLimit Duration `toml:"time_limit"`

	// A directory with hooks of the administrator's: pre-receive, update and post-receive, as far as they are there (docs/push.md). Empty: none.
	HooksDir string `toml:"hooks_dir"`

	// How long one hook may run. Then it is killed: it has refused, if it could.
	HookTimeLimit Duration `toml:"hook_time_limit"`
}

// WebhookConfig is somebody whom a node asks or tells about pushes by HTTP (docs/webhooks.md); each has a table of its own.
type WebhookConfig struct {
	// What directories, logs and metrics call it: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// Where requests are sent with POST: "http://..." or "https://...".
	URL string `toml:"url"`

	// When: "pre-receive", before refs change: it decides; "post-receive", after they have: it is told.
	Events []string `toml:"events"`

	// Patterns of the repositories that it is about, as in auth.rule. Empty: all.
	Repositories []string `toml:"repositories"`

	// File with the secret by which requests are signed (Packhorse-Signature); see storage.secret_file. Empty: they are not.
	SecretFile string `toml:"secret_file"`

	// How long one request may take, its answer included.
	Timeout Duration `toml:"timeout"`

	// What becomes of a push about which it does not decide: "closed", it is refused, or "open", it is taken.
	OnFailure string `toml:"on_failure"`

	// Whether its address may be one of a private network or of this machine.
	AllowPrivate bool `toml:"allow_private"`

	// How long a delivery is tried before it is put aside.
	GiveUp Duration `toml:"give_up"`
}

// LanesConfig bounds how much runs at the same time (docs/lanes.md). What finds its lane full is refused with 429 and Retry-After.
type LanesConfig struct {
	// Small requests: ref advertisements, ls-refs, negotiation.
	Small int `toml:"small"`

	// Packs from the cache, and long lists of refs, on their way to clients.
	Hit int `toml:"hit"`

	// Fetches whose pack has to be made: those that wait for a slot (git.slots, git.queue) and those that are sent while they are made.
	Cold int `toml:"cold"`

	// Pushes.
	Push int `toml:"push"`

	// Look-ups of the control API whose work grows with the repository, or that write: RepositoryService's Get, List, Create and Delete,
	// ObjectService's Log and DiffStat. Others wait for their turn. 0 means two for each CPU.
	Search int `toml:"search"`

	// Repositories that are repacked at the same time. Others wait for their turn.
	Maintenance int `toml:"maintenance"`

	// Whether callers, by name or network, share lanes fairly. Otherwise it is first come, first served, which is right behind a proxy that all
	// clients come through, unless they have names.
	Fair bool `toml:"fair"`

	// The part of each lane for anonymous callers together, from 0 to 1, where callers can be known and lanes are fair: how much of small, hit, cold and push
	// they may fill, and how often they come first where they and others wait. 1 lets them fill a lane.
	Anonymous float64 `toml:"anonymous"`

	// Whether fewer packs are made, and pushes taken, at the same time while the machine is short of memory or late for small requests.
	Adaptive bool `toml:"adaptive"`

	// The most bytes of requests' bodies, counted after gzip was undone, that all requests together may hold. The first 64 KiB of
	// each are not counted; a fetch holds its own until its pack is sent. What finds no room is refused with 429 and Retry-After.
	RequestBytes Size `toml:"request_bytes"`
}

// MaintenanceConfig says when the node repacks repositories: after pushes, one at a time, with low priority. `packhorse repo maintain` does so
// whenever it is asked.
type MaintenanceConfig struct {
	// Maintains repositories after pushes, when one of the three below has come together.
	Enabled bool `toml:"enabled"`

	// Loose objects.
	LooseObjects int `toml:"loose_objects"`

	// Packs more than maintenance left.
	Packs int `toml:"packs"`

	// Loose refs.
	LooseRefs int `toml:"loose_refs"`

	// How long nobody may push to a repository before it is looked at; ten times that at the latest.
	Quiet Duration `toml:"quiet"`
}

// upkeep is nil if there is none.
func (c *MaintenanceConfig) upkeep() *storage.Upkeep {
	if !c.Enabled {
		return nil
	}
	return &storage.Upkeep{Loose: c.LooseObjects, Packs: c.Packs, LooseRefs: c.LooseRefs, Quiet: c.Quiet.Duration}
}

// WarmupConfig says which packs are made for new tips before anybody asks. After a push those that were popular for the tips before (clones,
// shallow and partial ones, fetches from the tip before) are made in the background, so that the first jobs find them in the cache.
type WarmupConfig struct {
	// Makes packs before anybody asks. Needs the cache.
	Enabled bool `toml:"enabled"`

	// Requests longer ago do not count.
	Window Duration `toml:"window"`

	// How many requests make a pack popular.
	Least int `toml:"least"`

	// The most packs made after one push.
	Packs int `toml:"packs"`

	// A pack that was larger than this for the tip before is left for its first client.
	MaxBytes Size `toml:"max_bytes"`
}

// LogConfig is the log on standard error.
type LogConfig struct {
	// The least severe level that is written: "debug", "info", "warn" or "error".
	Level string `toml:"level"`

	// "text", "json", or "auto": text on a terminal, JSON elsewhere.
	Format string `toml:"format"`
}

// DefaultConfig is what holds where nothing was said.
func DefaultConfig() Config {
	policy := repo.DefaultPolicy()
	return Config{
		HTTP: HTTPConfig{
			Address:       "127.0.0.1:8080",
			HeaderTimeout: Duration{10 * time.Second},
			IdleTimeout:   Duration{2 * time.Minute},
			ReadStall:     Duration{time.Minute},
			WriteStall:    Duration{time.Minute},
			MaxHeader:     64 << 10,
			MaxBody:       64 << 20,
		},
		SSH: SSHConfig{
			Ciphers: gateway.DefaultSSHCiphers(), LoginGrace: Duration{30 * time.Second}, AuthTries: 6, KeepAlive: Duration{30 * time.Second},
			IdleTimeout: Duration{2 * time.Minute}, Sessions: 10, Connections: 4096, AddressConnections: 1024, Logins: 256, AddressLogins: 128,
			AddressRate: 50,
		},
		Auth: AuthConfig{
			Guesses: 10,
			Hook:    HookConfig{Timeout: Duration{2 * time.Second}, CacheTTL: Duration{time.Minute}, CacheSize: 10_000, Fail: failClosed},
		},
		Storage:  StorageConfig{SocketMode: 0o600, Channels: 4096, ChannelIdle: Duration{30 * time.Second}, Stall: Duration{time.Minute}},
		Ops:      OpsConfig{Address: "127.0.0.1:9090"},
		Shutdown: ShutdownConfig{Grace: Duration{30 * time.Second}},
		Cache: CacheConfig{
			Enabled:   true,
			MaxIdle:   Duration{5 * time.Minute},
			Probation: Duration{20 * time.Second},
			Grace:     Duration{10 * time.Second},
		},
		Git: GitConfig{
			Program:   "git",
			Queue:     256,
			Wait:      Duration{time.Minute},
			TimeLimit: Duration{time.Hour},
			Nice:      5,
			Window:    5,

			ShallowWindow:      1,
			ShallowCompression: 3,
			WindowMemory:       256 << 20,
		},
		Fetch: FetchConfig{
			Wants:      "auto",
			MaxWants:   1_000_000,
			MaxHaves:   1_000_000,
			MaxShallow: 100_000,

			AllowFilter:    policy.Filter,
			AllowRefInWant: policy.RefInWant,
			AllowTip:       policy.AllowTip,
			AllowReachable: policy.AllowReachable,
			AllowAny:       policy.AllowAny,
			Unborn:         string(policy.Unborn),
			KeepAlive:      Duration{policy.KeepAlive},
			SessionID:      policy.SessionID,
			ObjectInfo:     policy.ObjectInfo,
		},
		Push: PushConfig{
			Enabled:     true,
			MaxSize:     4 << 30,
			MaxMemory:   1 << 30,
			MaxCommands: 100_000,
			MaxOptions:  100,
			Queue:       256,
			Wait:        Duration{time.Minute},
			TimeLimit:   Duration{time.Hour},

			HookTimeLimit: Duration{time.Minute},
		},
		Lanes: LanesConfig{Small: 1024, Hit: 4096, Cold: 2048, Push: 256, Maintenance: 1, Fair: true, Anonymous: 0.5, Adaptive: true, RequestBytes: 256 << 20},
		Log:   LogConfig{Level: "info", Format: "auto"},

		Warmup:      WarmupConfig{Enabled: true, Window: Duration{10 * time.Minute}, Least: 2, Packs: 4, MaxBytes: 1 << 30},
		Maintenance: MaintenanceConfig{Enabled: true, LooseObjects: 1000, Packs: 20, LooseRefs: 500, Quiet: Duration{10 * time.Second}},
	}
}

// defaultElement is what holds in a table of an array where nothing was said.
func defaultElement(array string) any {
	switch array {
	case "node":
		return NodeConfig{Weight: 1, Transport: transportChannel, ChannelIdle: Duration{10 * time.Second}, Stall: Duration{time.Minute}}
	case "route":
		return RouteConfig{}
	case "webhook":
		return WebhookConfig{Events: []string{eventPost}, Timeout: Duration{10 * time.Second}, OnFailure: failClosed, GiveUp: Duration{7 * 24 * time.Hour}}
	case "auth.rule":
		return RuleConfig{}
	}
	panic("no array " + array)
}

// Values of node.transport.
const (
	transportChannel = "channel"
	transportInBand  = "inband"
)

// policy is what holds where a repository's own config says nothing.
func (c *FetchConfig) policy() *repo.Policy {
	p := repo.DefaultPolicy()
	p.Filter, p.RefInWant, p.SessionID, p.ObjectInfo = c.AllowFilter, c.AllowRefInWant, c.SessionID, c.ObjectInfo
	p.AllowTip, p.AllowReachable, p.AllowAny = c.AllowTip, c.AllowReachable, c.AllowAny
	p.Unborn, p.KeepAlive = repo.Unborn(c.Unborn), c.KeepAlive.Duration
	return &p
}

// slots is how many git processes run at the same time.
func (c *GitConfig) slots() int {
	if c.Slots == 0 {
		return runtime.GOMAXPROCS(0)
	}
	return c.Slots
}

// threads is how many threads each of them has.
func (c *GitConfig) threads() int {
	if c.Threads == 0 {
		return max(1, runtime.GOMAXPROCS(0)/c.slots())
	}
	return c.Threads
}

// slots is how many pushes are taken at the same time.
func (c *PushConfig) slots() int {
	if c.Slots == 0 {
		return 2 * runtime.GOMAXPROCS(0)
	}
	return c.Slots
}

// automatic tells for the keys whose value leaves the choice to serve what is chosen, as far as it is known before a start.
func (c *Config) automatic() map[string]string {
	auto := map[string]string{}
	add := func(key string, left bool, choice string) {
		if left {
			auto[key] = "auto" + choice
		}
	}
	add("git.slots", c.Git.Slots == 0, fmt.Sprintf(": %d here", c.Git.slots()))
	add("git.threads", c.Git.Threads == 0, fmt.Sprintf(": %d here", c.Git.threads()))
	add("push.slots", c.Push.Slots == 0, fmt.Sprintf(": %d here", c.Push.slots()))
	add("cache.max_bytes", c.Cache.MaxBytes == 0, "")
	add("cache.min_free", c.Cache.MinFree == 0, "")
	return auto
}

// complete fills in what follows from other values and makes paths absolute, so that `config show` tells what is used.
func (c *Config) complete(role role, env Env) {
	if c.State == "" {
		c.State = defaultState(role, c.Root, env)
	}
	if c.Auth.Tokens == "" && c.State != "" && role != roleStorage {
		c.Auth.Tokens = filepath.Join(c.State, "tokens")
	}
	if c.Cache.Dir == "" && c.State != "" && role != roleGateway {
		c.Cache.Dir = filepath.Join(c.State, "cache")
	}
	paths := []*string{&c.Root, &c.State, &c.Cache.Dir, &c.HTTP.TLSCert, &c.HTTP.TLSKey,
		&c.SSH.HostKeys, &c.SSH.AuthorizedKeys, &c.SSH.TrustedUserCA, &c.SSH.RevokedKeys,
		&c.Auth.Tokens, &c.Auth.Hook.SecretFile, &c.Storage.SecretFile, &c.Storage.TLSCert, &c.Storage.TLSKey, &c.Storage.ClientCA,
		&c.Push.HooksDir}
	for i := range c.Webhook {
		paths = append(paths, &c.Webhook[i].SecretFile)
	}
	for i := range c.Node {
		n := &c.Node[i]
		paths = append(paths, &n.SecretFile, &n.TLSCA, &n.TLSCert, &n.TLSKey)
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		if abs, err := filepath.Abs(*p); err == nil {
			*p = abs
		}
	}
}

// defaultState is the state directory of a process that was told of none; "" if there is no place for it.
func defaultState(role role, root string, env Env) string {
	if role != roleGateway {
		if root == "" {
			return ""
		}
		return filepath.Join(root, ".packhorse")
	}
	home := env.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(home) { // as its specification has it
		home = env.Getenv("HOME")
		if home == "" {
			return ""
		}
		home = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(home, "packhorse", "gateway")
}
