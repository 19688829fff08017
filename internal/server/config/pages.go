package config

import "regexp"

// PagesConfig is for the pages for browsers.
type PagesConfig struct {
	// Enabled serves pages for browsers: repositories, their files and history, and search.
	Enabled bool `toml:"enabled" default:"true"`

	// Title is the name of the site, at the top and in the titles of pages.
	Title string `toml:"title" default:"Packhorse"`

	// Logo is a file with an SVG, PNG, JPEG or WebP image for the top of pages. Empty means the logo of Packhorse.
	Logo string `toml:"logo" path:"yes"`

	// Text is a Markdown file that the list of repositories begins with.
	Text string `toml:"text" path:"yes"`

	// Style is a style sheet, which follows the one of the pages.
	Style string `toml:"style" path:"yes"`

	// SSH is the address of the SSH listener in commands to clone, as HOST or HOST:PORT. Empty means the host of the page,
	// with the port of ssh.address. Without both, pages show no such command.
	SSH string `toml:"ssh"`

	// KeyFile is the file with the secret that cookies are sealed with; see storage.secret_file for its mode. Gateways
	// with one name need the same. Empty means pages.key in the state directory, which is made at the first start.
	KeyFile string `toml:"key_file" path:"secret"`

	// CrawlBudget is the time of the server that each network (/24, IPv6 /48) may use at once for costly pages and
	// archives without a session. It comes back evenly within five minutes. 0s means no limit.
	CrawlBudget Duration `toml:"crawl_budget" default:"30s" range:"0s.."`

	// Issuer is the URL of an OpenID issuer that visitors sign in with. The rules for identity tokens ([[auth.oidc]])
	// decide who they are; their audience is client_id.
	Issuer string `toml:"issuer" needs:"client_id"`

	// ClientID is the ID of this server at the issuer. Its redirect address is PUBLIC_URL/-/sign-in/back.
	ClientID string `toml:"client_id" needs:"issuer"`

	// ClientSecretFile is the file with the secret of this server at the issuer; see storage.secret_file for its mode.
	// Empty means that the issuer knows no secret.
	ClientSecretFile string `toml:"client_secret_file" path:"secret" needs:"issuer"`
}

// sshHost matches HOST or HOST:PORT.
var sshHost = regexp.MustCompile(`^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// check reports mistakes in the address of SSH.
func (c *PagesConfig) check(f *Findings) {
	if c.SSH != "" && !sshHost.MatchString(c.SSH) {
		f.bad("pages.ssh is not an address like git.example.com or git.example.com:2222")
	}
}
