// Places boxes in layers below one another, so that every arrow points down.

const BOX = { width: 150, height: 38, across: 18, down: 34 };

/** The layer of each box: one below the lowest of the boxes that it reads. Arrows of a cycle count once. */
const layersOf = (count, arrows) => {
  const sources = Array.from({ length: count }, () => []);
  arrows.forEach(([from, to]) => sources[to].push(from));
  const layers = Array(count).fill(null);
  const layer = box => {
    if (layers[box] !== null) return layers[box];
    layers[box] = 0;
    layers[box] = Math.max(0, ...sources[box].map(source => layer(source) + 1));
    return layers[box];
  };
  layers.forEach((_, box) => layer(box));
  return layers;
};

/** Moves inputs down to the layer above their first reader. */
const lowerInputs = (layers, boxes, arrows) => boxes.forEach(({ isInput }, box) => {
  if (!isInput) return;
  const readers = arrows.filter(([from]) => from === box).map(([, to]) => layers[to]);
  layers[box] = Math.max(0, Math.min(...readers) - 1);
});

/** The places of the layers: boxes, and bends of the arrows that pass a layer. */
const placesOf = (boxes, arrows, layers) => {
  const places = boxes.map((_, box) => ({ box, layer: layers[box], width: BOX.width, above: [], below: [], x: 0 }));
  const paths = arrows.map(([from, to]) => {
    const path = [places[from]];
    for (let layer = layers[from] + 1; layer < layers[to]; layer += 1) {
      const bend = { layer, width: 0, above: [], below: [], x: 0 };
      places.push(bend);
      path.push(bend);
    }
    path.push(places[to]);
    path.slice(1).forEach((place, step) => {
      place.above.push(path[step]);
      path[step].below.push(place);
    });
    return path;
  });
  return { places, paths };
};

const mean = (places, none) =>
  places.length ? places.reduce((sum, place) => sum + place.x, 0) / places.length : none;
const distance = (one, other) => (one.width + other.width) / 2 + BOX.across;

/** Puts the places of a layer near the places that they are connected to, without overlaps. */
const settle = (layer, side) => {
  layer.forEach(place => { place.wish = mean(place[side], place.x); });
  layer.sort((one, other) => one.wish - other.wish);
  const [right, left] = [layer.map(place => place.wish), layer.map(place => place.wish)];
  for (let at = 1; at < layer.length; at += 1) {
    right[at] = Math.max(right[at], right[at - 1] + distance(layer[at - 1], layer[at]));
  }
  for (let at = layer.length - 2; at >= 0; at -= 1) {
    left[at] = Math.min(left[at], left[at + 1] - distance(layer[at], layer[at + 1]));
  }
  layer.forEach((place, at) => { place.x = (right[at] + left[at]) / 2; });
};

/** The centres of the boxes, the points of each arrow, and the size of the drawing. */
const layout = (boxes, arrows) => {
  const layers = layersOf(boxes.length, arrows);
  lowerInputs(layers, boxes, arrows);
  const down = arrows.filter(([from, to]) => layers[from] < layers[to]);
  const { places, paths } = placesOf(boxes, down, layers);
  const rowsOfPlaces = [];
  places.forEach(place => {
    const row = (rowsOfPlaces[place.layer] ??= []);
    place.x = row.length * (BOX.width + BOX.across);
    row.push(place);
  });
  for (let round = 0; round < 6; round += 1) {
    rowsOfPlaces.forEach(row => settle(row, "above"));
    rowsOfPlaces.toReversed().forEach(row => settle(row, "below"));
  }
  const left = Math.min(...places.map(place => place.x - place.width / 2));
  const right = Math.max(...places.map(place => place.x + place.width / 2));
  const y = place => place.layer * (BOX.height + BOX.down) + BOX.height / 2;
  const point = place => ({ x: place.x - left, y: y(place) });
  return {
    centres: places.slice(0, boxes.length).map(point),
    paths: paths.map(path => path.map(point)),
    width: right - left,
    height: rowsOfPlaces.length * (BOX.height + BOX.down) - BOX.down,
  };
};
