class Packhorse < Formula
  desc "Serve Git repositories to many clients at once"
  homepage "https://github.com/packhorse-git/packhorse"
  version "{{.Version}}"
  license "Apache-2.0"

  depends_on "git"
{{range $target, $sum := .Archives}}
  if {{if eq $target "darwin_arm64"}}OS.mac? && Hardware::CPU.arm?{{else if eq $target "linux_arm64"}}OS.linux? && Hardware::CPU.arm?{{else}}OS.linux? && Hardware::CPU.intel?{{end}}
    url "https://github.com/packhorse-git/packhorse/releases/download/v{{$.Version}}/packhorse_{{$.Version}}_{{$target}}.tar.gz"
    sha256 "{{$sum}}"
  end
{{end}}
  def install
    prefix.install Dir["*"]
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/packhorse version")
  end
end
