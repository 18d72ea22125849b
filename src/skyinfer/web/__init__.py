"""The pages that run models in a browser, as files: `skyinfer web` and `skyinfer serve --page` give them out.

All but the .py files are built from web/ and csrc/ (`npm run build --prefix web`, csrc/wasm/build.py) and need neither
to be used. They ask for nothing beyond their own origin.
"""
