# The programs of the release: nix-env --install --file packhorse.nix
{ pkgs ? import <nixpkgs> { } }:
let
  archives = {
{{- range $target, $sum := .Archives}}
    {{if eq $target "darwin_arm64"}}aarch64-darwin{{else if eq $target "linux_arm64"}}aarch64-linux{{else}}x86_64-linux{{end}} = { target = "{{$target}}"; sha256 = "{{$sum}}"; };
{{- end}}
  };
  system = pkgs.stdenv.hostPlatform.system;
  archive = archives.${system} or (throw "packhorse {{.Version}} has no programs for ${system}");
in
pkgs.stdenvNoCC.mkDerivation {
  pname = "packhorse";
  version = "{{.Version}}";
  src = pkgs.fetchurl {
    url = "https://github.com/packhorse-git/packhorse/releases/download/v{{.Version}}/packhorse_{{.Version}}_${archive.target}.tar.gz";
    inherit (archive) sha256;
  };
  nativeBuildInputs = [ pkgs.makeWrapper ];
  installPhase = ''
    mkdir $out
    cp -r . $out
    wrapProgram $out/bin/packhorse --suffix PATH : ${pkgs.lib.makeBinPath [ pkgs.git ]}
  '';
  meta = {
    description = "Serve Git repositories to many clients at once";
    homepage = "https://github.com/packhorse-git/packhorse";
    license = pkgs.lib.licenses.asl20;
    mainProgram = "packhorse";
    platforms = builtins.attrNames archives;
  };
}
